// Reads where tensors lie.
#include <cerrno>

#include "zinf_optim.h"
#include "zinf_tensors.h"

namespace zinf {
namespace {

// As DLPack numbers devices and types.
constexpr int32_t kOrdinaryMemory = 1;
constexpr uint8_t kUnsigned = 1, kFloat = 2, kBfloat = 4;

int32_t type_of(const zinf_dl_tensor& tensor) {
    if (tensor.type_lanes != 1) return ZINF_TYPE_NONE;
    switch (tensor.type_code << 8 | tensor.type_bits) {
    case kFloat << 8 | 32:
        return ZINF_TYPE_FP32;
    case kFloat << 8 | 16:
        return ZINF_TYPE_FP16;
    case kBfloat << 8 | 16:
        return ZINF_TYPE_BF16;
    case kUnsigned << 8 | 8:
        return ZINF_TYPE_Q8;
    default:
        return ZINF_TYPE_NONE;
    }
}

// Returns how many elements there are if they follow one another, else -1.
int64_t flat_numel(const zinf_dl_tensor& tensor) {
    int64_t numel = 1;
    bool flat = true;
    for (int32_t dim = tensor.num_dims - 1; dim >= 0; --dim) {
        const int64_t size = tensor.shape[dim];
        flat = flat && (size == 1 || tensor.strides == nullptr || tensor.strides[dim] == numel);
        numel *= size;
    }
    return flat || numel == 0 ? numel : -1;
}

struct Place {
    uint64_t address;
    int64_t numel;
    int32_t type;
};

// Returns as zinf_tensors_read does.
int32_t read(zinf_describe describe, void* object, Place* place) {
    zinf_dl_tensor tensor;
    if (describe(object, &tensor) != 0) return -EIO;
    place->address = reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset;
    place->numel = flat_numel(tensor);
    place->type = type_of(tensor);
    const bool there = place->numel == 0 || (place->numel > 0 && place->address != 0);
    return tensor.device_type == kOrdinaryMemory && there && place->type != ZINF_TYPE_NONE ? 0 : 1;
}

}  // namespace
}  // namespace zinf

extern "C" {

int32_t zinf_tensors_read(zinf_describe describe, void* const* objects, int64_t num,
                          uint64_t* addresses, const zinf_tensor_forms* forms) {
    for (int64_t i = 0; i < num; ++i) {
        zinf::Place place;
        if (const int32_t code = zinf::read(describe, objects[i], &place)) return code;
        addresses[i] = place.address;
        forms->numels[i] = place.numel;
        forms->types[i] = place.type;
    }
    return 0;
}

int32_t zinf_tensors_place(zinf_describe describe, const zinf_tensor_table* table) {
    int64_t i = 0;
    for (int64_t column = 0; column < table->num_columns; ++column) {
        uint64_t* word = table->rows + table->words[column];
        for (int64_t row = 0; row < table->num_rows; ++row, ++i, word += table->row_words) {
            zinf::Place place;
            if (const int32_t code = zinf::read(describe, table->objects[i], &place)) return code;
            if (place.numel != table->forms.numels[i] || place.type != table->forms.types[i]) {
                return 1;
            }
            *word = place.address;
        }
    }
    return 0;
}
}
