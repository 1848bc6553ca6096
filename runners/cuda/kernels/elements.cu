// Element types and what tensor cores do with them: the only place with assembly. No header is needed.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
typedef float f32;
typedef double f64;
typedef long long i64;
typedef int i32;
struct boolean { unsigned char bits; };

__device__ __forceinline__ float widen(f16 value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}
__device__ __forceinline__ float widen(bf16 value) { return __uint_as_float((u32)value.bits << 16); }
__device__ __forceinline__ float widen(f32 value) { return value; }
__device__ __forceinline__ double widen(f64 value) { return value; }
__device__ __forceinline__ double widen(i64 value) { return (double)value; }
__device__ __forceinline__ double widen(i32 value) { return (double)value; }
__device__ __forceinline__ float widen(boolean value) { return value.bits != 0 ? 1.0f : 0.0f; }

__device__ __forceinline__ void narrow(f16& to, float value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
}
__device__ __forceinline__ void narrow(bf16& to, float value) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
}
__device__ __forceinline__ void narrow(f16& to, double value) { narrow(to, (float)value); }
__device__ __forceinline__ void narrow(bf16& to, double value) { narrow(to, (float)value); }
__device__ __forceinline__ void narrow(f32& to, float value) { to = value; }
__device__ __forceinline__ void narrow(f32& to, double value) { to = (float)value; }
__device__ __forceinline__ void narrow(f64& to, double value) { to = value; }
__device__ __forceinline__ void narrow(i64& to, double value) { to = (i64)value; }
__device__ __forceinline__ void narrow(i32& to, double value) { to = (i32)value; }
__device__ __forceinline__ void narrow(boolean& to, float value) { to.bits = value != 0.0f ? 1 : 0; }
__device__ __forceinline__ void narrow(boolean& to, double value) { to.bits = value != 0.0 ? 1 : 0; }

// Two neighbours of half width in one register, the first in its lower half.
__device__ __forceinline__ u32 pair_of(float first, float second, f16) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
__device__ __forceinline__ u32 pair_of(float first, float second, bf16) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// 2 to the power of a number; 0 for minus infinity.
__device__ __forceinline__ float power_of_two(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// Four tiles of 8 x 8 halves from shared memory; each lane names a row of one.
__device__ __forceinline__ void load_tiles(u32 (&tiles)[4], const u16* row) {
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(at)
                 : "memory");
}

// The same, each tile transposed.
__device__ __forceinline__ void load_tiles_transposed(u32 (&tiles)[4], const u16* row) {
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(at)
                 : "memory");
}

// sums (16 x 8) += left (16 x 16) * right (16 x 8), by a whole warp.
__device__ __forceinline__ void multiply_tiles(float (&sums)[4], const u32 (&left)[4], u32 right0, u32 right1, f16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}
__device__ __forceinline__ void multiply_tiles(float (&sums)[4], const u32 (&left)[4], u32 right0, u32 right1, bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}
