// Attention on tensor cores without scores in memory: keys pass by in tiles, and the softmax is corrected as they do.
// A block has 64 queries, 16 to a warp. Widths over 128 are cut into slices for the scores, and output columns into
// chunks of which each block has one; every chunk computes the scores anew.

// Words in the order in which the host writes them. Strides: item, head, token.
struct Attention {
    u64 heads, queries, keys, width, value_width, causal;
    double scale;
    u64 q[3], k[3], v[3], out[3];
};

// Copies 64 rows of COLUMNS halves to shared memory; what is beyond `rows` or `width` is 0.
template <int COLUMNS, int PITCH>
__device__ __forceinline__ void load_rows(u16* to, const u16* from, u64 stride, u64 rows, u64 first, u64 width) {
    bool whole = ((u64)from) % 16 == 0 && stride % 8 == 0;
    for (int group = threadIdx.x; group < 64 * COLUMNS / 8; group += 128) {
        int row = group / (COLUMNS / 8), column = group % (COLUMNS / 8) * 8;
        uint4 values = {0, 0, 0, 0};
        u64 at = first + column;
        if (row < rows && at < width) {
            const u16* source = from + row * stride + at;
            if (whole && at + 8 <= width) {
                values = *(const uint4*)source;
            } else {
                u32 pairs[4] = {0, 0, 0, 0};
                for (int i = 0; i < 8; ++i) {
                    if (at + i < width) pairs[i / 2] |= (u32)source[i] << (16 * (i % 2));
                }
                values = {pairs[0], pairs[1], pairs[2], pairs[3]};
            }
        }
        *(uint4*)(to + row * PITCH + column) = values;
    }
}

// The largest and the sum over the four lanes that share a row.
__device__ __forceinline__ float largest_of_row(float value) {
    for (int distance = 1; distance < 4; distance *= 2) {
        float other = __shfl_xor_sync(0xffffffffu, value, distance);
        value = other > value ? other : value;
    }
    return value;
}
__device__ __forceinline__ float sum_of_row(float value) {
    for (int distance = 1; distance < 4; distance *= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

template <class T, int WIDTH, int CHUNK>
__device__ void attention(const Attention& a, const void* q_at, const void* k_at, const void* v_at, void* out_at) {
    constexpr int SLICE = WIDTH < 128 ? WIDTH : 128;
    constexpr int Q_PITCH = WIDTH + 8, K_PITCH = SLICE + 8, V_PITCH = CHUNK + 8;
    extern __shared__ __align__(16) u16 shared[];
    u16 *q_rows = shared, *k_rows = q_rows + 64 * Q_PITCH, *v_rows = k_rows + 64 * K_PITCH;

    u64 tiles = (a.queries + 63) / 64, first_query = blockIdx.x % tiles * 64, item_head = blockIdx.x / tiles;
    u64 item = item_head / a.heads, head = item_head % a.heads, first_column = (u64)blockIdx.y * CHUNK;
    const u16* q = (const u16*)q_at + item * a.q[0] + head * a.q[1] + first_query * a.q[2];
    const u16* k = (const u16*)k_at + item * a.k[0] + head * a.k[1];
    const u16* v = (const u16*)v_at + item * a.v[0] + head * a.v[1];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 own_query = first_query + warp * 16 + lane / 4;
    float scale = (float)(a.scale * 1.44269504088896340736);

    load_rows<WIDTH, Q_PITCH>(q_rows, q, a.q[2], a.queries - first_query, 0, a.width);
    float out[CHUNK / 8][4] = {};
    float largest[2] = {minus_infinity(), minus_infinity()}, total[2] = {0.0f, 0.0f};
    u64 end = a.keys;
    if (a.causal && first_query + 64 < end) end = first_query + 64;

    for (u64 first_key = 0; first_key < end; first_key += 64) {
        float scores[8][4] = {};
        for (int slice = 0; slice < WIDTH; slice += SLICE) {
            __syncthreads();
            load_rows<SLICE, K_PITCH>(k_rows, k + first_key * a.k[2], a.k[2], a.keys - first_key, slice, a.width);
            if (slice == 0) {
                load_rows<CHUNK, V_PITCH>(v_rows, v + first_key * a.v[2], a.v[2], a.keys - first_key, first_column,
                                          a.value_width);
            }
            __syncthreads();
            #pragma unroll
            for (int column = 0; column < SLICE; column += 16) {
                if (WIDTH % SLICE != 0 && slice + column >= WIDTH) break;
                u32 left[4];
                load_tiles(left, q_rows + (warp * 16 + lane % 16) * Q_PITCH + slice + column + lane / 16 * 8);
                #pragma unroll
                for (int key = 0; key < 64; key += 16) {
                    u32 right[4];
                    load_tiles(right, k_rows + (key + lane / 16 * 8 + lane % 8) * K_PITCH + column + lane / 8 % 2 * 8);
                    multiply_tiles(scores[key / 8], left, right[0], right[1], T());
                    multiply_tiles(scores[key / 8 + 1], left, right[2], right[3], T());
                }
            }
        }
        bool ragged = first_key + 64 > a.keys || (a.causal && first_key + 63 > first_query);
        float most[2] = {minus_infinity(), minus_infinity()};
        #pragma unroll
        for (int tile = 0; tile < 8; ++tile) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                float score = scores[tile][i] * scale;
                if (ragged) {
                    u64 key = first_key + tile * 8 + lane % 4 * 2 + i % 2, query = own_query + i / 2 * 8;
                    if (key >= a.keys || (a.causal && key > query)) score = minus_infinity();
                }
                scores[tile][i] = score;
                most[i / 2] = score > most[i / 2] ? score : most[i / 2];
            }
        }
        float from[2];
        #pragma unroll
        for (int row = 0; row < 2; ++row) {
            float now = largest_of_row(most[row]);
            now = now > largest[row] ? now : largest[row];
            // A row that has seen no key yet keeps its sums of 0.
            from[row] = now == minus_infinity() ? 0.0f : now;
            float correction = power_of_two(largest[row] - from[row]);
            largest[row] = now;
            total[row] *= correction;
            #pragma unroll
            for (int tile = 0; tile < CHUNK / 8; ++tile) {
                out[tile][row * 2] *= correction;
                out[tile][row * 2 + 1] *= correction;
            }
        }
        #pragma unroll
        for (int key = 0; key < 64; key += 16) {
            u32 left[4];
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                float(&own)[4] = scores[key / 8 + half];
                #pragma unroll
                for (int i = 0; i < 4; ++i) {
                    own[i] = power_of_two(own[i] - from[i / 2]);
                    total[i / 2] += own[i];
                }
                left[half * 2] = pair_of(own[0], own[1], T());
                left[half * 2 + 1] = pair_of(own[2], own[3], T());
            }
            #pragma unroll
            for (int column = 0; column < CHUNK; column += 16) {
                u32 right[4];
                load_tiles_transposed(right,
                                      v_rows + (key + lane / 8 % 2 * 8 + lane % 8) * V_PITCH + column + lane / 16 * 8);
                multiply_tiles(out[column / 8], left, right[0], right[1], T());
                multiply_tiles(out[column / 8 + 1], left, right[2], right[3], T());
            }
        }
    }

    T* result = (T*)out_at + item * a.out[0] + head * a.out[1];
    #pragma unroll
    for (int row = 0; row < 2; ++row) {
        float all = sum_of_row(total[row]);
        float share = all > 0.0f ? 1.0f / all : 0.0f;
        u64 query = own_query + row * 8;
        #pragma unroll
        for (int tile = 0; tile < CHUNK / 8; ++tile) {
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                u64 column = first_column + tile * 8 + lane % 4 * 2 + i;
                if (query < a.queries && column < a.value_width) {
                    narrow(result[query * a.out[2] + column], out[tile][row * 2 + i] * share);
                }
            }
        }
    }
}
