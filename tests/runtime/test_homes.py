"""Homes: fresh ones, finding them by address, swapping their extents, their end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zcompile.ir import PAGE_BYTES, Tier
from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.homes import Home, Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.procfs import resident_bytes_of
from zcompile.runtime.transfers import Copies

STRIPED = True

AWAY = [Tier.NVME, Tier.HOST]


def home_of(homes: Homes, tensor: torch.Tensor) -> Home:
    place = homes.find(tensor)
    assert place is not None
    assert place.byte_offset == 0
    return place.home


@pytest.mark.parametrize("tier", AWAY)
def test_a_fresh_tensor_has_a_home_of_its_own(homes: Homes, tier: Tier) -> None:
    tensors = [homes.fresh(f"g{i}", tier, torch.bfloat16, (5, 3), (1, 5)) for i in range(3)]
    assert len({tensor.data_ptr() for tensor in tensors}) == 3
    for i, tensor in enumerate(tensors):
        assert tensor.stride() == (1, 5)
        home = home_of(homes, tensor)
        assert (home.label, home.tier, home.nbytes) == (f"g{i}", tier, 30)
        assert home.address == tensor.data_ptr()
        assert home.address % PAGE_BYTES == 0
        assert (home.lease is not None) == (tier is Tier.NVME)


def test_the_device_tier_is_ordinary_memory(homes: Homes) -> None:
    tensor = homes.fresh("w", Tier.DEVICE, torch.float32, (3, 4), (1, 3))
    assert tensor.stride() == (1, 3)
    assert homes.find(tensor) is None


@pytest.mark.parametrize("tier", list(Tier))
def test_a_tensor_without_elements_has_no_home(homes: Homes, tier: Tier) -> None:
    tensor = homes.fresh("w", tier, torch.float32, (0, 4), (4, 1))
    assert tensor.shape == (0, 4)
    assert homes.find(tensor) is None


@pytest.mark.parametrize("tier", AWAY)
def test_views_are_found_where_they_begin(homes: Homes, tier: Tier) -> None:
    flat = homes.fresh("flat", tier, torch.float32, (100,), (1,))
    home = home_of(homes, flat)
    for view, byte_offset in [
        (flat[10:20], 40),
        (flat.view(10, 10)[2], 80),
        (flat.view(10, 10).t()[3], 12),
        (flat.view(torch.uint8)[7:], 7),
        (flat[99], 396),
        (flat.detach()[5:6].view(torch.int16), 20),
    ]:
        place = homes.find(view)
        assert place is not None
        assert (place.home, place.byte_offset) == (home, byte_offset)


def test_foreign_memory_is_not_found(homes: Homes) -> None:
    kept = [homes.fresh("w", Tier.NVME, torch.float32, (7,), (1,)) for _ in range(10)]
    arenas = [Arena(PAGE_BYTES) for _ in range(10)]
    foreign = [arena.tensor(0, torch.float32, (7,), (1,)) for arena in arenas]
    foreign += [torch.ones(7), torch.ones(()), torch.empty(0), torch.empty(3, device="meta")]
    assert all(homes.find(tensor) is None for tensor in foreign)
    assert all(homes.find(tensor) is not None for tensor in kept)


def test_a_reused_address_is_not_taken_for_the_home_that_was_there(homes: Homes) -> None:
    reused = 0
    for _ in range(50):
        fresh = homes.fresh("g", Tier.HOST, torch.float32, (1 << 18,), (1,))
        address = fresh.data_ptr()
        del fresh
        arena = Arena(1 << 20)
        reused += arena.address == address
        assert homes.find(arena.tensor(0, torch.float32, (4,), (1,))) is None
    assert reused > 0, "or this tests nothing"


def test_homes_that_come_and_go_are_always_told_apart(homes: Homes) -> None:
    generator = torch.Generator().manual_seed(0)
    living: dict[str, torch.Tensor] = {}
    for i in range(400):
        size = int(torch.randint(1, 20_000, (), generator=generator))
        living[f"g{i}"] = homes.fresh(f"g{i}", AWAY[i % 2], torch.float32, (size,), (1,))
        if i % 3:
            living.pop(list(living)[int(torch.randint(len(living), (), generator=generator))])
        for label, tensor in living.items():
            assert home_of(homes, tensor).label == label


def act(homes: Homes, living: list[torch.Tensor], action: str, number: int) -> None:
    """Make, swap or drop one home; a new one and a swapped one are filled with ``number``."""
    which = number % max(len(living), 1)
    if action == "make" or not living:
        tensor = homes.fresh("w", Tier.NVME, torch.int32, (700 * (number % 5 + 1),), (1,))
        living.append(tensor.fill_(number))
    elif action == "swap":
        homes.swap(home_of(homes, living[which]), homes.lease(living[which].nbytes, "w"))
        living[which].fill_(number)
    else:
        del living[which]


def shows_its_extent(homes: Homes, tensor: torch.Tensor) -> bool:
    lease = home_of(homes, tensor).lease
    assert lease is not None
    files = lease.file.files
    parts = [os.pread(files[each.file].fd, each.nbytes, each.offset) for each in lease.pieces()]
    stored = b"".join(parts)[: tensor.nbytes]
    return stored == tensor.numpy().tobytes() and bool(tensor.eq(tensor[0]).all())


@given(st.lists(st.tuples(st.sampled_from(["make", "swap", "drop"]), st.integers(0, 99))))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_home_ever_shows_the_bytes_of_another(
    homes: Homes, extent_file: ExtentFile, actions: list[tuple[str, int]]
) -> None:
    living: list[torch.Tensor] = []
    for action, number in actions:
        before = [tensor.clone() for tensor in living]
        act(homes, living, action, number)
        kept = [tensor.clone() for tensor in living]
        unchanged = sum(any(torch.equal(*pair) for pair in product([old], kept)) for old in before)
        assert unchanged >= len(before) - 1, "one action changes one home"
        assert all(shows_its_extent(homes, tensor) for tensor in living)
    held_bytes = sum(home_of(homes, tensor).mapping.nbytes for tensor in living)
    assert extent_file.leased_bytes == held_bytes


@pytest.mark.parametrize("tier", AWAY)
def test_the_last_tensor_ends_a_home(
    homes: Homes, extent_file: ExtentFile, ledger: Ledger, tier: Tier
) -> None:
    tensor = homes.fresh("g", tier, torch.float32, (2000,), (1,))
    assert ledger.snapshot().held_bytes[tier] == 2 * PAGE_BYTES
    user = tensor[400:].view(20, -1)[:, 3]
    del tensor
    gc.collect()
    assert ledger.snapshot().held_bytes[tier] == 2 * PAGE_BYTES
    del user
    assert ledger.snapshot().held_bytes[tier] == 0
    assert extent_file.leased_bytes == 0


def test_swapping_keeps_address_and_record(homes: Homes, extent_file: ExtentFile) -> None:
    tensor = homes.fresh("w", Tier.NVME, torch.float32, (1024,), (1,))
    home = home_of(homes, tensor.fill_(1.0))
    shadow = homes.lease(home.nbytes, "w")
    (page,) = shadow.pieces()
    content = torch.full((1024,), 2.0).numpy().tobytes()
    os.pwrite(extent_file.files[page.file].fd, content, page.offset)
    homes.swap(home, shadow)
    assert tensor.eq(2.0).all()
    assert home_of(homes, tensor) is home
    assert home.lease is shadow
    assert extent_file.leased_bytes == home.mapping.nbytes, "the extent before is free again"


def test_a_read_in_flight_keeps_the_extent_that_was_swapped_away(
    homes: Homes, copies: Copies, extent_file: ExtentFile
) -> None:
    tensor = homes.fresh("w", Tier.NVME, torch.float32, (1 << 20,), (1,)).fill_(1.0)
    home = home_of(homes, tensor)
    target = torch.empty(1 << 20)
    for value in (2.0, 3.0, 4.0):
        assert home.lease is not None
        pending = copies.read(home.lease, 0, target.data_ptr(), home.nbytes, "w", keep=target)
        homes.swap(home, homes.lease(home.nbytes, "w"))
        other = homes.fresh("g", Tier.NVME, torch.float32, (1 << 20,), (1,)).fill_(-1.0)
        tensor.fill_(value)
        pending.wait()
        assert target.eq(value - 1).all()
        del other, pending
    assert extent_file.leased_bytes == home.nbytes


def test_trimming_drops_every_page_and_no_byte(homes: Homes, extent_file: ExtentFile) -> None:
    tensors = [homes.fresh("w", Tier.NVME, torch.float32, (1 << 18,), (1,)) for _ in range(4)]
    for value, tensor in enumerate(tensors):
        tensor.fill_(value)
    assert resident_bytes_of(extent_file.files[0].path) > 0
    homes.trim()
    assert resident_bytes_of(extent_file.files[0].path) == 0
    assert [tensor.mean().item() for tensor in tensors] == [0.0, 1.0, 2.0, 3.0]


def test_tensors_outlive_homes_file_and_folder(extent_file: ExtentFile) -> None:
    homes = Homes(extent_file, Ledger())
    tensor = homes.fresh("w", Tier.NVME, torch.float32, (1 << 18,), (1,)).fill_(3.0)
    homes.trim()
    homes.close()
    del homes
    gc.collect()
    extent_file.close()
    extent_file.files[0].folder.close()
    assert tensor.add_(1.0).eq(4.0).all()


def test_threads_may_make_and_find_homes_at_once(homes: Homes) -> None:
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for i in range(100):
                label = f"{name}{i}"
                tensor = homes.fresh(label, AWAY[i % 2], torch.float32, (i + 1,), (1,))
                assert home_of(homes, tensor).label == label
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_forked_child_reads_homes_drops_them_and_makes_none(
    homes: Homes, extent_file: ExtentFile
) -> None:
    tensor = homes.fresh("w", Tier.NVME, torch.float32, (1000,), (1,)).fill_(5.0)
    host = homes.fresh("h", Tier.HOST, torch.float32, (1000,), (1,)).fill_(6.0)
    child = os.fork()
    if child == 0:
        refused = 0
        found = homes.find(tensor) is not None and host[3].item() == 6.0
        for tier in AWAY:
            try:
                homes.fresh("g", tier, torch.float32, (10,), (1,))
            except RuntimeError:
                refused += 1
        del tensor, host
        gc.collect()
        os._exit(0 if found and refused == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tensor.eq(5.0).all()
    assert extent_file.leased_bytes == PAGE_BYTES


def test_a_process_ends_quietly_with_homes_in_use(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
import torch
from zcompile.ir import Tier
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.transfers import Transfers
ledger = Ledger()
file = ExtentFile(RunFolder.create(Path(sys.argv[1])))
copies = Transfers(file, ledger)
homes = Homes(file, ledger)
model = torch.nn.Linear(100, 100)
homes.adopt(list(model.named_parameters()), Tier.NVME, copies)
gradients = [homes.fresh("g", tier, torch.float32, (1000,), (1,)) for tier in Tier]
cycle = [homes, gradients]
cycle.append(cycle)
model(torch.ones(100)).sum().backward()
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert os.listdir(tmp_path) == []


def test_pages_that_eager_code_touched_are_counted_once(homes: Homes, ledger: Ledger) -> None:
    tensor = homes.fresh("w", Tier.NVME, torch.float32, (1 << 20,), (1,))
    tensor.fill_(1)
    homes.trim()
    before = ledger.snapshot()
    homes.trim()
    assert ledger.snapshot().since(before).eager_bytes == 0, "nothing is resident"
    assert tensor.sum() == 1 << 20
    homes.trim()
    counted = ledger.snapshot().since(before).eager_bytes
    assert tensor.nbytes <= counted < 2 * tensor.nbytes
