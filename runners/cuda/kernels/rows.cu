// Softmax, and reductions of one dimension.

// One block for each row. Operands of the walk over rows: output, input.
template <class Out, class X>
__device__ void softmax(const Walk& rows, void* out_at, const void* x_at, u64 width, u64 out_stride, u64 x_stride) {
    __shared__ float places[32];
    for (u64 row = blockIdx.x; row < rows.count; row += gridDim.x) {
        u64 at[2];
        locate<2>(rows, row, at);
        const X* x = (const X*)x_at + at[1];
        Out* out = (Out*)out_at + at[0];
        float largest = minus_infinity(), sum = 0.0f;
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float value = widen(x[i * x_stride]);
            largest = value > largest ? value : largest;
        }
        largest = over_block(largest, Largest(), places);
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) sum += expf((float)widen(x[i * x_stride]) - largest);
        sum = over_block(sum, Sum(), places);
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            narrow(out[i * out_stride], expf((float)widen(x[i * x_stride]) - largest) / sum);
        }
    }
}

// Each reduction: how it starts, what an element does to it, and what it comes to. `Real` is float or double.
template <class Real>
struct Mean {
    Real sum = 0;
    __device__ void take(Real value, u64) { sum += value; }
    __device__ Real result(u64 length) const { return sum / (Real)length; }
};
template <class Real>
struct Length {
    Real squares = 0;
    __device__ void take(Real value, u64) { squares += value * value; }
    __device__ Real result(u64) const { return root(squares); }
};
template <class Real>
struct Any {
    Real found = 0;
    __device__ void take(Real value, u64) { if (value != Real(0)) found = 1; }
    __device__ Real result(u64) const { return found; }
};
template <class Real>
struct All {
    Real found = 1;
    __device__ void take(Real value, u64) { if (value == Real(0)) found = 0; }
    __device__ Real result(u64) const { return found; }
};
template <class Real>
struct FirstLargest {
    Real largest = 0;
    u64 place = 0;
    __device__ void take(Real value, u64 index) {
        if (index == 0 || value > largest) { largest = value; place = index; }
    }
    __device__ double result(u64) const { return (double)place; }
};

// One thread for each element of the output. Operands of the walk over them: output, input.
template <template <class> class Reduction, class Out, class X>
__device__ void reduce_each(const Walk& walk, void* out, const void* x_at, u64 count, u64 stride) {
    typedef decltype(widen(*(const X*)x_at)) real;
    for (u64 i = first_index(); i < walk.count; i += index_step()) {
        u64 at[2];
        locate<2>(walk, i, at);
        const X* x = (const X*)x_at + at[1];
        Reduction<real> reduction;
        for (u64 element = 0; element < count; ++element) reduction.take(widen(x[element * stride]), element);
        narrow(((Out*)out)[at[0]], reduction.result(count));
    }
}

// One block for each element of the output, where what is reduced lies side by side: means and lengths.
template <bool MEAN, class Out, class X>
__device__ void reduce_rows(const Walk& walk, void* out, const void* x_at, u64 count, u64 stride) {
    __shared__ float places[32];
    for (u64 i = blockIdx.x; i < walk.count; i += gridDim.x) {
        u64 at[2];
        locate<2>(walk, i, at);
        const X* x = (const X*)x_at + at[1];
        float sum = 0.0f;
        for (u64 element = threadIdx.x; element < count; element += blockDim.x) {
            float value = widen(x[element * stride]);
            sum += MEAN ? value : value * value;
        }
        sum = over_block(sum, Sum(), places);
        if (threadIdx.x == 0) narrow(((Out*)out)[at[0]], MEAN ? sum / (float)count : sqrtf(sum));
    }
}
