"""Mapped memory: one storage per home, remapping in place, coherence with direct I/O."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from zcompile.ir import PAGE_BYTES
from zcompile.runtime.arena import Arena
from zcompile.runtime.buffer import span, tensor_over
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.mapping import FileMapper, HomeMapping, map_host
from zcompile.runtime.procfs import disk_traffic, resident_bytes_of
from zcompile.runtime.stripes import STRIPE_BYTES

NUMEL = 3 * PAGE_BYTES // 4

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.fixture
def mapper() -> FileMapper:
    return FileMapper()


def open_floats(mapping: HomeMapping) -> Tensor:
    return tensor_over(mapping.open(lambda _: None), 0, torch.float32, (NUMEL,), (1,))


def write_direct(lease: Lease, value: float) -> None:
    pages = Arena(lease.capacity)
    pages.tensor(0, torch.float32, (lease.capacity // 4,), (1,)).fill_(value)
    os.pwritev(direct_fd(lease), [bytes_of(pages)], lease.offset)


def read_direct(lease: Lease) -> Tensor:
    pages = Arena(lease.capacity)
    os.preadv(direct_fd(lease), [bytes_of(pages)], lease.offset)
    return pages.tensor(0, torch.float32, (lease.capacity // 4,), (1,))


def bytes_of(arena: Arena) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * arena.nbytes).from_address(arena.address)


def direct_fd(lease: Lease) -> int:
    fd = lease.file.files[0].direct_fd
    assert fd is not None, lease.file.files[0].direct_refusal
    return fd


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "stride"),
    [((6, 4), (4, 1)), ((6, 4), (1, 6)), ((), ()), ((1,), (1,)), ((2, 3), (8, 2))],
)
def test_every_dtype_and_stride_is_an_ordinary_tensor(
    extent_file: ExtentFile,
    mapper: FileMapper,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> None:
    mapping = mapper.map(extent_file.lease(span(shape, stride) * dtype.itemsize, "w"))
    tensor = tensor_over(mapping.open(lambda _: None), 0, dtype, shape, stride)
    assert (tensor.dtype, tensor.shape, tensor.stride()) == (dtype, shape, stride)
    assert tensor.data_ptr() == mapping.address
    assert not tensor._is_view()
    source = torch.randn(shape).to(dtype)
    tensor.copy_(source)
    assert torch.equal(tensor.to(torch.complex128), source.to(torch.complex128))


def test_the_storage_has_the_size_of_the_tensor(
    extent_file: ExtentFile, mapper: FileMapper
) -> None:
    mapping = mapper.map(extent_file.lease(20, "w"))
    tensor = tensor_over(mapping.open(lambda _: None), 0, torch.float32, (5,), (1,))
    assert tensor.untyped_storage().nbytes() == 20


def test_stores_and_direct_io_see_each_other(extent_file: ExtentFile, mapper: FileMapper) -> None:
    lease = extent_file.lease(NUMEL * 4, "w")
    tensor = open_floats(mapper.map(lease))
    for value in range(50):
        tensor.fill_(value)
        assert read_direct(lease).eq(value).all()
        write_direct(lease, value + 0.5)
        assert tensor.eq(value + 0.5).all()


def test_remapping_changes_the_bytes_and_nothing_else(
    extent_file: ExtentFile, mapper: FileMapper
) -> None:
    first, second = (extent_file.lease(NUMEL * 4, "w") for _ in range(2))
    mapping = mapper.map(first)
    parameter = torch.nn.Parameter(open_floats(mapping))
    parameter.data.fill_(1.0)
    write_direct(second, 2.0)
    view, address, version = parameter.data[5:7], parameter.data_ptr(), parameter._version
    mapping.remap(second)
    assert (parameter.data_ptr(), parameter._version) == (address, version)
    assert parameter.eq(2.0).all()
    assert view.tolist() == [2.0, 2.0]
    parameter.data.fill_(3.0)
    assert read_direct(second).eq(3.0).all()
    assert read_direct(first).eq(1.0).all()
    write_direct(second, 4.0)
    assert parameter.eq(4.0).all()


def test_remapping_lets_go_of_the_extent_before(
    extent_file: ExtentFile, mapper: FileMapper
) -> None:
    mapping = mapper.map(extent_file.lease(NUMEL * 4, "w"))
    tensor = open_floats(mapping)
    for _ in range(20):
        mapping.remap(extent_file.lease(NUMEL * 4, "w"))
        assert extent_file.leased_bytes == mapping.nbytes
    reader = mapping.lease
    mapping.remap(extent_file.lease(NUMEL * 4, "w"))
    assert extent_file.leased_bytes == 2 * mapping.nbytes, "a reader still refers to the other"
    del reader, tensor
    assert extent_file.leased_bytes == 0


def test_remapping_needs_the_same_size_and_a_tensor(
    extent_file: ExtentFile, mapper: FileMapper
) -> None:
    mapping = mapper.map(extent_file.lease(NUMEL * 4, "w"))
    tensor = open_floats(mapping)
    with pytest.raises(AssertionError, match="does not fit"):
        mapping.remap(extent_file.lease(NUMEL * 4 + 1, "w"))
    del tensor
    with pytest.raises(AssertionError, match="no tensor is left"):
        mapping.remap(extent_file.lease(NUMEL * 4, "w"))


def test_the_last_tensor_ends_mapping_and_lease(
    extent_file: ExtentFile, mapper: FileMapper
) -> None:
    ended: list[HomeMapping] = []
    mapping = mapper.map(extent_file.lease(NUMEL * 4, "w"))
    tensor = tensor_over(mapping.open(ended.append), 0, torch.float32, (NUMEL,), (1,))
    view = tensor[3:].view(torch.int32)
    del tensor
    gc.collect()
    assert not ended
    assert str(extent_file.files[0].path) in Path("/proc/self/maps").read_text()
    del view
    assert ended == [mapping]
    assert mapping.lease is None
    assert mapping.buffer() is None
    assert str(extent_file.files[0].path) not in Path("/proc/self/maps").read_text()
    assert extent_file.leased_bytes == 0


def test_an_extent_is_mapped_beside_its_neighbours(
    extent_file: ExtentFile, mapper: FileMapper
) -> None:
    leases = [extent_file.lease(nbytes, "w") for nbytes in (5000, 3 << 20, 1)]
    mappings = [mapper.map(lease) for lease in leases]
    buffers = [mapping.open(lambda _: None) for mapping in mappings]
    bases = {
        mapping.address - lease.offset for mapping, lease in zip(mappings, leases, strict=True)
    }
    assert len(bases) == 1
    assert bases.pop() % (2 << 20) == 0
    assert Path("/proc/self/maps").read_text().count(str(extent_file.files[0].path)) == 1
    del buffers
    assert Path("/proc/self/maps").read_text().count(str(extent_file.files[0].path)) == 0


def test_an_extent_is_mapped_elsewhere_while_its_address_shows_another(
    extent_file: ExtentFile, mapper: FileMapper
) -> None:
    first = extent_file.lease(NUMEL * 4, "w")
    parameter = mapper.map(first)
    weight = open_floats(parameter)
    parameter.remap(extent_file.lease(NUMEL * 4, "w"))
    weight.fill_(1.0)
    gradients: list[Tensor] = []
    for value in (2.0, 3.0):
        mapping = mapper.map(first)  # the extent was let go of and leased again
        gradients.append(open_floats(mapping).fill_(value))
    assert len({weight.data_ptr(), *(gradient.data_ptr() for gradient in gradients)}) == 3
    assert weight.eq(1.0).all()
    assert all(gradient.eq(3.0).all() for gradient in gradients)
    address = weight.data_ptr()
    del weight, gradients
    again = mapper.map(first)
    assert again.address == address
    assert open_floats(again).eq(3.0).all()


def test_addresses_are_reserved_until_mapper_and_tensors_have_gone(
    extent_file: ExtentFile,
) -> None:
    def size_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES

    before = size_bytes()
    mapper = FileMapper()
    weight = open_floats(mapper.map(extent_file.lease(NUMEL * 4, "w")))
    del mapper
    gc.collect()
    assert size_bytes() - before >= 1 << 30
    assert weight.fill_(1.0).eq(1.0).all()
    del weight
    assert size_bytes() - before < 1 << 29


def test_a_large_file_gets_addresses_too(extent_file: ExtentFile, mapper: FileMapper) -> None:
    start = extent_file.stripes.end
    extent_file.stripes = extent_file.stripes.grown(6 << 40, STRIPE_BYTES, [(0, start)])
    far = Lease(extent_file, 1, 5 << 40, 5000, "w")
    assert (mapper.map(far).address - far.offset) % (2 << 20) == 0


def test_trimming_loses_no_byte(extent_file: ExtentFile, mapper: FileMapper) -> None:
    mapping = mapper.map(extent_file.lease(NUMEL * 4, "w"))
    tensor = open_floats(mapping)
    tensor.copy_(torch.arange(NUMEL))
    mapper.trim()
    assert resident_bytes_of(extent_file.files[0].path) == 0
    assert torch.equal(tensor, torch.arange(NUMEL, dtype=torch.float32))


def test_host_memory_has_no_extent_and_is_not_trimmed(mapper: FileMapper) -> None:
    mapping = map_host(NUMEL * 4 + 1)
    tensor = open_floats(mapping)
    tensor.fill_(1.0)
    assert mapping.lease is None
    assert mapping.nbytes == 4 * PAGE_BYTES
    mapper.trim()
    assert tensor.eq(1.0).all()


def test_touching_one_element_reads_little(extent_file: ExtentFile, mapper: FileMapper) -> None:
    lease = extent_file.lease(32 << 20, "w")
    write_direct(lease, 1.0)
    tensor = tensor_over(mapper.map(lease).open(lambda _: None), 0, torch.float32, (8 << 20,), (1,))
    before = disk_traffic()
    assert tensor[4 << 20].item() == 1.0
    assert disk_traffic().since(before).read_bytes <= 4 << 20


def test_a_failing_map_names_file_and_tensor(extent_file: ExtentFile, mapper: FileMapper) -> None:
    lease = extent_file.lease(100, "layers.0.weight")
    extent_file.close()
    with pytest.raises(StorageError, match=r"map layers\.0\.weight: 100 B.*EBADF") as caught:
        mapper.map(lease)
    assert caught.value.filename == str(extent_file.files[0].path)
