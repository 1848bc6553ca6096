// What all kernels share: walks over strided operands, groups of neighbours, mathematics by type, sums over a block.

// Words in the order in which the host writes them. Dimensions are innermost first; operand 0 is what is written.
struct Walk {
    u64 count;
    u64 rank;
    u64 sizes[6];
    u64 strides[5][6];
};

__device__ __forceinline__ u64 first_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 index_step() { return (u64)gridDim.x * blockDim.x; }

// The offsets of element `index` in every operand.
template <int OPERANDS>
__device__ __forceinline__ void locate(const Walk& walk, u64 index, u64 (&at)[OPERANDS]) {
    for (int operand = 0; operand < OPERANDS; ++operand) at[operand] = 0;
    if (walk.rank <= 1) {
        for (int operand = 0; operand < OPERANDS; ++operand) at[operand] = index * walk.strides[operand][0];
        return;
    }
    // Divisions of 64 bits cost several times those of 32, which are enough for nearly all tensors.
    if (walk.count <= 0xffffffffull) {
        u32 rest = (u32)index;
        for (int dimension = 0; dimension < 6; ++dimension) {
            if (dimension >= walk.rank) break;
            u32 size = (u32)walk.sizes[dimension];
            u32 outer = rest / size;
            u64 own = rest - outer * size;
            rest = outer;
            for (int operand = 0; operand < OPERANDS; ++operand) at[operand] += own * walk.strides[operand][dimension];
        }
        return;
    }
    u64 rest = index;
    for (int dimension = 0; dimension < 6; ++dimension) {
        if (dimension >= walk.rank) break;
        u64 size = walk.sizes[dimension];
        u64 outer = rest / size;
        u64 own = rest - outer * size;
        rest = outer;
        for (int operand = 0; operand < OPERANDS; ++operand) at[operand] += own * walk.strides[operand][dimension];
    }
}

// Four neighbours, loaded and stored at once.
template <class T>
struct __align__(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) group4 {
    T at[4];
};
template <class T>
__device__ __forceinline__ bool aligned4(const void* address) {
    return ((u64)address) % alignof(group4<T>) == 0;
}

__device__ __forceinline__ float exponential(float value) { return expf(value); }
__device__ __forceinline__ double exponential(double value) { return exp(value); }
__device__ __forceinline__ float logarithm(float value) { return logf(value); }
__device__ __forceinline__ double logarithm(double value) { return log(value); }
__device__ __forceinline__ float root(float value) { return sqrtf(value); }
__device__ __forceinline__ double root(double value) { return sqrt(value); }
__device__ __forceinline__ float sine(float value) { return sinf(value); }
__device__ __forceinline__ double sine(double value) { return sin(value); }
__device__ __forceinline__ float cosine(float value) { return cosf(value); }
__device__ __forceinline__ double cosine(double value) { return cos(value); }
__device__ __forceinline__ float power(float base, float exponent) { return powf(base, exponent); }
__device__ __forceinline__ double power(double base, double exponent) { return pow(base, exponent); }
__device__ __forceinline__ float hyperbolic_tangent(float value) { return tanhf(value); }
__device__ __forceinline__ double hyperbolic_tangent(double value) { return tanh(value); }
__device__ __forceinline__ float gelu_exact(float value) {
    return 0.5f * value * (1.0f + erff(value * 0.70710678118654752f));
}
__device__ __forceinline__ double gelu_exact(double value) {
    return 0.5 * value * (1.0 + erf(value * 0.70710678118654752440));
}
template <class Real>
__device__ __forceinline__ Real gelu_by_tanh(Real value) {
    Real inner = Real(0.79788456080286535588) * (value + Real(0.044715) * value * value * value);
    return Real(0.5) * value * (Real(1) + hyperbolic_tangent(inner));
}
template <class Real>
__device__ __forceinline__ bool is_infinite(Real value) {
    return value == Real(__int_as_float(0x7f800000)) || value == -Real(__int_as_float(0x7f800000));
}
__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fc00000); }
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// What is combined over all threads of a block; every thread is given the result. `threads` is a multiple of 32.
template <class T, class Combine>
__device__ __forceinline__ T over_block(T own, Combine combine, T* places) {
    for (int distance = 16; distance > 0; distance /= 2) own = combine(own, combine.from_lane(own, distance));
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) places[warp] = own;
    __syncthreads();
    T all = places[0];
    for (int other = 1; other < warps; ++other) all = combine(all, places[other]);
    return all;
}

struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
    __device__ float from_lane(float own, int distance) const { return __shfl_xor_sync(0xffffffffu, own, distance); }
};

struct Largest {
    __device__ float operator()(float a, float b) const { return a > b ? a : b; }
    __device__ float from_lane(float own, int distance) const { return __shfl_xor_sync(0xffffffffu, own, distance); }
};

// Count, mean and sum of squared distances from the mean of some numbers; two of them are merged without loss.
struct Moments {
    float count, mean, squares;
};
struct Merge {
    __device__ Moments operator()(Moments a, Moments b) const {
        float count = a.count + b.count;
        if (count == 0.0f) return a;
        float distance = b.mean - a.mean, share = b.count / count;
        return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
    }
    __device__ Moments from_lane(Moments own, int distance) const {
        return {__shfl_xor_sync(0xffffffffu, own.count, distance), __shfl_xor_sync(0xffffffffu, own.mean, distance),
                __shfl_xor_sync(0xffffffffu, own.squares, distance)};
    }
};
