// The dtypes of one instruction set ISA, for `native.c`.

#define T float
#define I int32_t
#define U float
#define W 4
#define ZERO -0.0f
#define LOWEST -__builtin_inff()
#define HIGHEST __builtin_inff()
#define NAME(x) JOIN(x, f32, ISA)
#include "native_kernels.h"
#define T double
#define I int64_t
#define U double
#define W 2
#define ZERO -0.0
#define LOWEST -__builtin_inf()
#define HIGHEST __builtin_inf()
#define NAME(x) JOIN(x, f64, ISA)
#include "native_kernels.h"
#define T int32_t
#define I int32_t
#define U uint32_t
#define W 4
#define ZERO 0
#define LOWEST INT32_MIN
#define HIGHEST INT32_MAX
#define NAME(x) JOIN(x, s32, ISA)
#include "native_kernels.h"
#define T int64_t
#define I int64_t
#define U uint64_t
#define W 2
#define ZERO 0
#define LOWEST INT64_MIN
#define HIGHEST INT64_MAX
#define NAME(x) JOIN(x, s64, ISA)
#include "native_kernels.h"
