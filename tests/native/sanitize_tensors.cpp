// Drives the reading of tensors, to be built with sanitizers: objects that describe themselves,
// arrays that end where the tensors end.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "zinf_optim.h"
#include "zinf_tensors.h"

namespace {

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

struct Object {
    float* data;
    std::vector<int64_t> shape, strides;
    bool broken = false;
};

int describe(void* object, zinf_dl_tensor* tensor) {
    auto* of = static_cast<Object*>(object);
    if (of->broken) return -1;
    *tensor = {};
    tensor->data = of->data;
    tensor->device_type = 1;
    tensor->num_dims = static_cast<int32_t>(of->shape.size());
    tensor->type_code = 2, tensor->type_bits = 32, tensor->type_lanes = 1;
    tensor->shape = of->shape.data();
    tensor->strides = of->strides.empty() ? nullptr : of->strides.data();
    return 0;
}

}  // namespace

int main() {
    float room[6] = {};
    Object objects[] = {{room, {2, 3}, {3, 1}}, {room + 1, {}, {}},     {nullptr, {0, 7}, {1, 1}},
                        {room, {1, 5}, {9, 1}}, {room + 2, {4}, {}},    {room, {3}, {1}}};
    std::vector<void*> pointers;
    for (Object& each : objects) pointers.push_back(&each);
    const auto num = static_cast<int64_t>(pointers.size());
    std::vector<uint64_t> addresses(pointers.size());
    std::vector<int64_t> numels(pointers.size());
    std::vector<int32_t> types(pointers.size());
    const zinf_tensor_forms forms{numels.data(), types.data()};
    const auto read = [&] {
        return zinf_tensors_read(describe, pointers.data(), num, addresses.data(), &forms);
    };
    check(read() == 0, "all can be read");
    check(numels == std::vector<int64_t>{6, 1, 0, 5, 4, 3}, "numbers of elements are right");

    const std::vector<int64_t> words{0, 2, 3};
    std::vector<uint64_t> rows(2 * 4, 77);
    const zinf_tensor_table table{pointers.data(), forms, words.data(), 3, 2, 4, rows.data()};
    check(zinf_tensors_place(describe, &table) == 0, "rows are written");
    const std::vector<uint64_t> expected{addresses[0], 77, addresses[2], addresses[4],
                                         addresses[1], 77, addresses[3], addresses[5]};
    check(rows == expected, "addresses are in their words");

    objects[5].shape = {2};
    check(zinf_tensors_place(describe, &table) == 1, "another size is noticed");
    objects[5].strides = {2};
    check(read() == 1, "what is not flat is noticed");
    objects[5].data = nullptr, objects[5].strides = {1};
    check(read() == 1, "what has no memory is noticed");
    objects[5].broken = true;
    check(read() < 0, "what cannot be described is an error");
    return 0;
}
