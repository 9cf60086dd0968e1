// Where tensors lie: what a framework's objects say of themselves, read many at a time.
//
// The conventions are those of zinf.h.  The structure and the function that fills it are those of
// DLPack's exchange interface (DLPackExchangeAPI, major version 1); a framework gives the address
// of its function, so nothing here knows what an object is.
#ifndef ZINF_TENSORS_H
#define ZINF_TENSORS_H

#include "zinf.h"

#ifdef __cplusplus
extern "C" {
#endif

// DLTensor.
typedef struct zinf_dl_tensor {
    void* data;
    int32_t device_type;
    int32_t device_id;
    int32_t num_dims;
    uint8_t type_code;
    uint8_t type_bits;
    uint16_t type_lanes;
    int64_t* shape;
    int64_t* strides;      // in elements; NULL if rows follow one another
    uint64_t byte_offset;  // of the first element from `data`
} zinf_dl_tensor;

// Fills `tensor` with what lives as long as `object` is not changed.  Returns 0, or -1 with an
// error left where the framework's language keeps them.
typedef int (*zinf_describe)(void* object, zinf_dl_tensor* tensor);

// What tensors are: how many elements, of which types, as zinf_optim.h numbers these.
typedef struct zinf_tensor_forms {
    int64_t* numels;
    int32_t* types;
} zinf_tensor_forms;

// Put down where `num` tensors begin, and what they are.  The caller holds whatever lock
// `describe` needs.  Return 0; 1 if one of them does not lie flat in ordinary memory, or is of
// another type; -EIO if `describe` has failed.  If not 0, what was put down means nothing.
ZINF_API int32_t zinf_tensors_read(zinf_describe describe, void* const* objects, int64_t num,
                                   uint64_t* addresses, const zinf_tensor_forms* forms);

// Columns of tensors, one of each for a row, and the words of the rows that get their addresses.
typedef struct zinf_tensor_table {
    void* const* objects;  // column by column
    zinf_tensor_forms forms;
    const int64_t* words;  // of each column
    int64_t num_columns;
    int64_t num_rows;
    int64_t row_words;
    uint64_t* rows;
} zinf_tensor_table;

// Have the rows of `table` say where its tensors are now.  Returns as zinf_tensors_read, and 1
// also if one of them is not what `forms` says; rows may then be half new.
ZINF_API int32_t zinf_tensors_place(zinf_describe describe, const zinf_tensor_table* table);

#ifdef __cplusplus
}
#endif

#endif
