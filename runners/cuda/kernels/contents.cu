// Values for memory that nobody has written, the same as on the host bit by bit, and a look for what is no number.

__device__ __forceinline__ float uniform(u32 seed, u64 index) {
    u32 x = (u32)index ^ ((u32)(index >> 32) * 0x85ebca6bu) ^ (seed * 0x9e3779b9u);
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return __fmul_rn((float)(x >> 8), 1.0f / 16777216.0f);
}

// Each step rounds by itself, as on the host: nothing may be fused.
template <class Out>
__device__ void fill_around(void* out, u64 count, u64 seed, double centre, double amplitude) {
    for (u64 i = first_index(); i < count; i += index_step()) {
        float distance = __fsub_rn(__fmul_rn(2.0f, uniform((u32)seed, i)), 1.0f);
        narrow(((Out*)out)[i], __fadd_rn(__fmul_rn((float)amplitude, distance), (float)centre));
    }
}

template <class Out>
__device__ void fill_below(void* out, u64 count, u64 seed, u64 below) {
    for (u64 i = first_index(); i < count; i += index_step()) {
        narrow(((Out*)out)[i], floor((double)uniform((u32)seed, i) * (double)below));
    }
}

template <class Out>
__device__ void fill_counting(void* out, u64 count) {
    for (u64 i = first_index(); i < count; i += index_step()) narrow(((Out*)out)[i], (double)i);
}

// Counts what is infinite or no number.
template <class X>
__device__ void count_not_finite(const Walk& walk, void* counter, const void* x) {
    u64 found = 0;
    for (u64 i = first_index(); i < walk.count; i += index_step()) {
        u64 at[1];
        locate<1>(walk, i, at);
        auto value = widen(((const X*)x)[at[0]]);
        if (!(value - value == 0)) found += 1;
    }
    if (found) atomicAdd((u64*)counter, found);
}
