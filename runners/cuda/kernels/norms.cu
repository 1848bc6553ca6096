// Normalisations: statistics in single precision, by blocks; no memory beside what they write.

// One block for each group of each item. Distances from the group's first element are summed, so that a mean far from 0
// costs no precision; threads' moments are then merged.
template <class X, class W, class M>
__device__ void group_statistics(const Walk& walk, const void* x_at, const void* scale_at, const void* shift_at,
                                 void* mean_at, void* deviation_at, void* factor_at, void* summand_at, u64 groups,
                                 u64 channels, u64 item_stride, u64 group_stride, double epsilon) {
    __shared__ Moments places[32];
    u64 item = blockIdx.x / groups, group = blockIdx.x % groups;
    const X* x = (const X*)x_at + item * item_stride + group * group_stride;
    float pivot = widen(x[0]), sum = 0.0f, squares = 0.0f, count = 0.0f;
    for (u64 i = threadIdx.x; i < walk.count; i += blockDim.x) {
        u64 at[1];
        locate<1>(walk, i, at);
        float distance = widen(x[at[0]]) - pivot;
        sum += distance;
        squares += distance * distance;
        count += 1.0f;
    }
    float mean = count > 0.0f ? sum / count : 0.0f;
    Moments own = {count, pivot + mean, squares - sum * mean};
    Moments all = over_block(own, Merge(), places);
    float variance = all.squares / all.count;
    float deviation = 1.0f / sqrtf((variance > 0.0f ? variance : 0.0f) + (float)epsilon);
    if (threadIdx.x == 0) {
        narrow(((M*)mean_at)[blockIdx.x], all.mean);
        narrow(((M*)deviation_at)[blockIdx.x], deviation);
    }
    for (u64 own_channel = threadIdx.x; own_channel < channels; own_channel += blockDim.x) {
        u64 channel = group * channels + own_channel;
        float factor = deviation * (float)widen(((const W*)scale_at)[channel]);
        ((float*)factor_at)[item * groups * channels + channel] = factor;
        ((float*)summand_at)[item * groups * channels + channel] =
            (float)widen(((const W*)shift_at)[channel]) - all.mean * factor;
    }
}

template <class Out, class X>
__device__ void scale_and_shift(const Walk& walk, void* out, const void* x, const void* factor, const void* summand) {
    for (u64 i = first_index(); i < walk.count; i += index_step()) {
        u64 at[3];
        locate<3>(walk, i, at);
        float value = widen(((const X*)x)[at[1]]);
        narrow(((Out*)out)[at[0]], value * ((const float*)factor)[at[2]] + ((const float*)summand)[at[2]]);
    }
}

// One block for each row. Operands of the walk over rows: output, input, statistics.
template <class Out, class X, class W>
__device__ void layer_norm(const Walk& rows, void* out_at, const void* x_at, const void* scale_at,
                           const void* shift_at, void* mean_at, void* deviation_at, u64 width, u64 out_stride,
                           u64 x_stride, double epsilon) {
    __shared__ float places[32];
    for (u64 row = blockIdx.x; row < rows.count; row += gridDim.x) {
        u64 at[3];
        locate<3>(rows, row, at);
        const X* x = (const X*)x_at + at[1];
        Out* out = (Out*)out_at + at[0];
        float sum = 0.0f, squares = 0.0f;
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) sum += (float)widen(x[i * x_stride]);
        float mean = over_block(sum, Sum(), places) / (float)width;
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float distance = (float)widen(x[i * x_stride]) - mean;
            squares += distance * distance;
        }
        float deviation = 1.0f / sqrtf(over_block(squares, Sum(), places) / (float)width + (float)epsilon);
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float value = ((float)widen(x[i * x_stride]) - mean) * deviation;
            if (scale_at) value *= (float)widen(((const W*)scale_at)[i]);
            if (shift_at) value += (float)widen(((const W*)shift_at)[i]);
            narrow(out[i * out_stride], value);
        }
        if (threadIdx.x == 0) {
            if (mean_at) ((float*)mean_at)[at[2]] = mean;
            if (deviation_at) ((float*)deviation_at)[at[2]] = deviation;
        }
    }
}

// The same without mean and shift.
template <class Out, class X, class W>
__device__ void rms_norm(const Walk& rows, void* out_at, const void* x_at, const void* scale_at, void* deviation_at,
                         u64 width, u64 out_stride, u64 x_stride, double epsilon) {
    __shared__ float places[32];
    for (u64 row = blockIdx.x; row < rows.count; row += gridDim.x) {
        u64 at[3];
        locate<3>(rows, row, at);
        const X* x = (const X*)x_at + at[1];
        Out* out = (Out*)out_at + at[0];
        float squares = 0.0f;
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float value = widen(x[i * x_stride]);
            squares += value * value;
        }
        float deviation = 1.0f / sqrtf(over_block(squares, Sum(), places) / (float)width + (float)epsilon);
        for (u64 i = threadIdx.x; i < width; i += blockDim.x) {
            float value = (float)widen(x[i * x_stride]) * deviation;
            if (scale_at) value *= (float)widen(((const W*)scale_at)[i]);
            narrow(out[i * out_stride], value);
        }
        if (threadIdx.x == 0 && deviation_at) ((float*)deviation_at)[at[2]] = deviation;
    }
}
