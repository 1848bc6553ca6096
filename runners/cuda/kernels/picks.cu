// Rows of tables by index, and pixels repeated.

// Operands of the walk: output, index, what of the table's offset does not depend on the index. An index beyond the table
// gives what is no number, where the element type has such a thing.
template <class Out, class Table, class Index>
__device__ void gather(const Walk& walk, void* out, const void* table, const void* indices, u64 rows, u64 row_stride) {
    for (u64 i = first_index(); i < walk.count; i += index_step()) {
        u64 at[3];
        locate<3>(walk, i, at);
        i64 row = (i64)widen(((const Index*)indices)[at[1]]);
        if (row < 0 || row >= (i64)rows) {
            narrow(((Out*)out)[at[0]], not_a_number());
            continue;
        }
        narrow(((Out*)out)[at[0]], widen(((const Table*)table)[at[2] + (u64)row * row_stride]));
    }
}

// Operands of the walk: output, row, column, what of the input's offset depends on neither.
template <class Out, class X>
__device__ void upsample(const Walk& walk, void* out, const void* x, u64 rows, u64 out_rows, u64 columns,
                         u64 out_columns, u64 row_stride, u64 column_stride) {
    for (u64 i = first_index(); i < walk.count; i += index_step()) {
        u64 at[4];
        locate<4>(walk, i, at);
        u64 row = at[1] * rows / out_rows, column = at[2] * columns / out_columns;
        narrow(((Out*)out)[at[0]], widen(((const X*)x)[at[3] + row * row_stride + column * column_stride]));
    }
}
