// The dtypes of one instruction set ISA, for `native.c`.

#define T float
#define I int32_t
#define U float
#define W 4
#define ZERO -0.0f
#define LOWEST -__builtin_inff()
#define HIGHEST __builtin_inff()
#define DTYPE f32
#define FLOAT 1
#define BITS uint32_t
#define MANTISSA 23
#define BIAS 127
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#define TERMS 7
#include "native_ops.h"
#define T double
#define I int64_t
#define U double
#define W 2
#define ZERO -0.0
#define LOWEST -__builtin_inf()
#define HIGHEST __builtin_inf()
#define DTYPE f64
#define FLOAT 1
#define BITS uint64_t
#define MANTISSA 52
#define BIAS 1023
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define TERMS 13
#include "native_ops.h"
#define T int32_t
#define I int32_t
#define U uint32_t
#define W 4
#define ZERO 0
#define LOWEST INT32_MIN
#define HIGHEST INT32_MAX
#define DTYPE s32
#include "native_ops.h"
#define T int64_t
#define I int64_t
#define U uint64_t
#define W 2
#define ZERO 0
#define LOWEST INT64_MIN
#define HIGHEST INT64_MAX
#define DTYPE s64
#include "native_ops.h"
