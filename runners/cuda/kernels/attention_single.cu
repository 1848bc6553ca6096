// Attention in single precision without scores in memory, on ordinary cores. A block of 256 threads has 64 queries;
// output columns are cut into chunks of which each block has one, and every chunk computes the scores anew.

// Words in the order in which the host writes them. Strides: item, head, token.
struct AttentionSingle {
    u64 heads, queries, keys, width, value_width, causal;
    double scale;
    u64 q[3], k[3], v[3], out[3];
};

template <int CHUNK>
__device__ void attention_single(const AttentionSingle& a, const void* q_at, const void* k_at, const void* v_at,
                                 void* out_at) {
    constexpr int EACH = CHUNK / 16;
    __shared__ float q_part[64][17], k_part[64][17], v_part[16][CHUNK], weights[64][65];
    __shared__ float largest[64], total[64], corrections[64];
    u64 tiles = (a.queries + 63) / 64, first_query = blockIdx.x % tiles * 64, item_head = blockIdx.x / tiles;
    u64 item = item_head / a.heads, head = item_head % a.heads, first_column = (u64)blockIdx.y * CHUNK;
    const float* q = (const float*)q_at + item * a.q[0] + head * a.q[1];
    const float* k = (const float*)k_at + item * a.k[0] + head * a.k[1];
    const float* v = (const float*)v_at + item * a.v[0] + head * a.v[1];
    int rows = threadIdx.x / 16 * 4, columns = threadIdx.x % 16 * 4, own_column = threadIdx.x % 16;
    if (threadIdx.x < 64) {
        largest[threadIdx.x] = minus_infinity();
        total[threadIdx.x] = 0.0f;
    }
    float out[4][EACH] = {};
    u64 end = a.keys;
    if (a.causal && first_query + 64 < end) end = first_query + 64;

    for (u64 first_key = 0; first_key < end; first_key += 64) {
        float scores[4][4] = {};
        for (u64 first = 0; first < a.width; first += 16) {
            __syncthreads();
            for (int i = threadIdx.x; i < 64 * 16; i += 256) {
                int row = i / 16, column = i % 16;
                bool inside = first + column < a.width;
                u64 query = first_query + row, key = first_key + row;
                q_part[row][column] = inside && query < a.queries ? q[query * a.q[2] + first + column] : 0.0f;
                k_part[row][column] = inside && key < a.keys ? k[key * a.k[2] + first + column] : 0.0f;
            }
            __syncthreads();
            #pragma unroll
            for (int column = 0; column < 16; ++column) {
                #pragma unroll
                for (int i = 0; i < 4; ++i) {
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        scores[i][j] += q_part[rows + i][column] * k_part[columns + j][column];
                    }
                }
            }
        }
        for (int i = 0; i < 4; ++i) {
            for (int j = 0; j < 4; ++j) {
                u64 key = first_key + columns + j, query = first_query + rows + i;
                bool hidden = key >= a.keys || (a.causal && key > query);
                weights[rows + i][columns + j] = hidden ? minus_infinity() : scores[i][j] * (float)a.scale;
            }
        }
        __syncthreads();
        // Four threads share a row.
        int row = threadIdx.x / 4;
        float now = largest[row], before = now, sum = 0.0f;
        for (int i = threadIdx.x % 4; i < 64; i += 4) now = weights[row][i] > now ? weights[row][i] : now;
        for (int distance = 1; distance < 4; distance *= 2) {
            float other = __shfl_xor_sync(0xffffffffu, now, distance);
            now = other > now ? other : now;
        }
        float from = now == minus_infinity() ? 0.0f : now;
        for (int i = threadIdx.x % 4; i < 64; i += 4) {
            float weight = expf(weights[row][i] - from);
            weights[row][i] = weight;
            sum += weight;
        }
        for (int distance = 1; distance < 4; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        if (threadIdx.x % 4 == 0) {
            float correction = expf(before - from);
            largest[row] = now;
            total[row] = total[row] * correction + sum;
            corrections[row] = correction;
        }
        __syncthreads();
        for (int i = 0; i < 4; ++i) {
            for (int j = 0; j < EACH; ++j) out[i][j] *= corrections[rows + i];
        }
        for (int key = 0; key < 64; key += 16) {
            __syncthreads();
            for (int i = threadIdx.x; i < 16 * CHUNK; i += 256) {
                u64 at = first_key + key + i / CHUNK, column = first_column + i % CHUNK;
                v_part[i / CHUNK][i % CHUNK] = at < a.keys && column < a.value_width ? v[at * a.v[2] + column] : 0.0f;
            }
            __syncthreads();
            #pragma unroll
            for (int step = 0; step < 16; ++step) {
                #pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float weight = weights[rows + i][key + step];
                    #pragma unroll
                    for (int j = 0; j < EACH; ++j) out[i][j] += weight * v_part[step][own_column + j * 16];
                }
            }
        }
    }

    __syncthreads();
    float* result = (float*)out_at + item * a.out[0] + head * a.out[1];
    for (int i = 0; i < 4; ++i) {
        u64 query = first_query + rows + i;
        if (query >= a.queries) continue;
        float share = total[rows + i] > 0.0f ? 1.0f / total[rows + i] : 0.0f;
        for (int j = 0; j < EACH; ++j) {
            u64 column = first_column + own_column + j * 16;
            if (column < a.value_width) result[query * a.out[2] + column] = out[i][j] * share;
        }
    }
}
