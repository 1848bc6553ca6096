// Convolutions that the library refuses, one thread for each element of the output. Slow, and rarely needed.

// Words in the order in which the host writes them. Sizes and strides: batch (outputs of the weights), channels, space.
struct Convolution {
    u64 out[5], in[5], kernel[5];
    u64 out_strides[5], in_strides[5], kernel_strides[5];
    u64 stride[3], padding[3];
};

template <class T>
__device__ void convolution(const Convolution& c, void* out, const void* input_at, const void* weights_at) {
    u64 count = c.out[0] * c.out[1] * c.out[2] * c.out[3] * c.out[4];
    for (u64 i = first_index(); i < count; i += index_step()) {
        u64 at[5], rest = i, to = 0;
        for (int dimension = 4; dimension >= 0; --dimension) {
            at[dimension] = rest % c.out[dimension];
            rest /= c.out[dimension];
            to += at[dimension] * c.out_strides[dimension];
        }
        const T* input = (const T*)input_at + at[0] * c.in_strides[0];
        const T* weights = (const T*)weights_at + at[1] * c.kernel_strides[0];
        float sum = 0.0f;
        for (u64 x = 0; x < c.kernel[2]; ++x) {
            u64 depth = at[2] * c.stride[0] + x - c.padding[0];
            // Before the first is beyond the last: these numbers have no sign.
            if (depth >= c.in[2]) continue;
            for (u64 y = 0; y < c.kernel[3]; ++y) {
                u64 row = at[3] * c.stride[1] + y - c.padding[1];
                if (row >= c.in[3]) continue;
                for (u64 z = 0; z < c.kernel[4]; ++z) {
                    u64 column = at[4] * c.stride[2] + z - c.padding[2];
                    if (column >= c.in[4]) continue;
                    u64 from = depth * c.in_strides[2] + row * c.in_strides[3] + column * c.in_strides[4];
                    u64 by = x * c.kernel_strides[2] + y * c.kernel_strides[3] + z * c.kernel_strides[4];
                    for (u64 channel = 0; channel < c.kernel[1]; ++channel) {
                        sum += widen(input[from + channel * c.in_strides[1]]) *
                               widen(weights[by + channel * c.kernel_strides[1]]);
                    }
                }
            }
        }
        narrow(((T*)out)[to], sum);
    }
}
