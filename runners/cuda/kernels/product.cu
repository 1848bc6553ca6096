// Matrix products of any strides and element types, one thread for each element of the output. Slow, and rarely needed.

template <class Out, class Left, class Right>
__device__ void product(const Walk& walk, void* out_at, const void* left_at, const void* right_at, u64 terms,
                        u64 left_stride, u64 right_stride, u64 adds) {
    Out* out = (Out*)out_at;
    const Left* left = (const Left*)left_at;
    const Right* right = (const Right*)right_at;
    for (u64 i = first_index(); i < walk.count; i += index_step()) {
        u64 at[3];
        locate<3>(walk, i, at);
        decltype(widen(left[0]) * widen(right[0])) sum = 0;
        if (adds) sum = widen(out[at[0]]);
        for (u64 term = 0; term < terms; ++term) {
            sum += widen(left[at[1] + term * left_stride]) * widen(right[at[2] + term * right_stride]);
        }
        narrow(out[at[0]], sum);
    }
}
