"""An experiment as bytes for our own worker processes. Large tensors lie in memory-mapped files, once for all of them.

They have no names: a process needs a handle to use one, and the system frees it with the last process, however it ends.

cloudpickle sends what is defined in a script, a notebook or a function by its code. Nothing from outside is unpickled.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_flatten, tree_unflatten

from steppe.executors.allocator import return_memory

LARGE = 1 << 16  # bytes from which a tensor is shared instead of copied to every process
OFTEN = 1 << 24  # bytes of the base after whose move freed memory is returned
Key = tuple[int, torch.Size, torch.dtype]


class Shared(NamedTuple):
    """A file with large tensors: their shapes, and which of the pickle's they are."""

    handle: int
    shapes: list[Tensor]
    places: list[int]


class OwnPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles the user's own objects."""

    def reducer_override(self, thing: Any) -> Any:
        """Take a parametrised module apart, which its own class refuses."""
        if isinstance(thing, nn.Module) and parametrize.is_parametrized(thing):
            return _rebuild_parametrized, (parametrize.type_before_parametrizations(thing), thing.__dict__)
        return super().reducer_override(thing)


class Packer(OwnPickler):
    """Pickles everything but large tensors, which it lists."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.places: dict[Key, int] = {}
        self.objects: list[list[Tensor]] = []  # at each place, all objects that share the numbers

    def persistent_id(self, thing: Any) -> Any:
        """Return where a large tensor will lie, and what kind of object it is."""
        if type(thing) not in (Tensor, nn.Parameter) or thing.nbytes < LARGE or not _is_plain(thing):
            return None
        place = self.places.setdefault(_identify(thing), len(self.places))
        if place == len(self.objects):
            self.objects.append([])
        known = next((i for i, other in enumerate(self.objects[place]) if other is thing), None)
        if known is None:
            known = len(self.objects[place])
            self.objects[place].append(thing)
        return place, known, isinstance(thing, nn.Parameter), thing.requires_grad


class Unpacker(pickle.Unpickler):
    """Unpickles what a Packer made; the large tensors are given."""

    def __init__(self, file: io.BytesIO, large: Mapping[int, Tensor]) -> None:
        super().__init__(file)
        self.large, self.made = large, dict[Any, Tensor]()

    def persistent_load(self, pid: Any) -> Tensor:
        """Return the same object for the same object, so that tied weights stay tied."""
        place, _, parameter, requires_grad = pid
        if pid not in self.made:
            found = self.large[place]
            self.made[pid] = nn.Parameter(found, requires_grad) if parameter else found.requires_grad_(requires_grad)
        return self.made[pid]


def pickle_own(thing: Any) -> bytes:
    """Return the user's own objects as bytes for another process, all tensors included."""
    file = io.BytesIO()
    OwnPickler(file).dump(thing)
    return file.getvalue()


def pack(thing: Any) -> tuple[bytes, Packer]:
    """Return the bytes, and the packer with the large tensors that are not among them."""
    file = io.BytesIO()
    packer = Packer(file)
    packer.dump(thing)
    return file.getvalue(), packer


def unpack(job: bytes, files: Iterable[Shared]) -> Any:
    """Return the thing, with its large tensors in the shared files."""
    large = {place: t for f in files for place, t in zip(f.places, place_tensors(f.shapes, f.handle), strict=True)}
    return Unpacker(io.BytesIO(job), large).load()


def share(packer: Packer, frozen: Iterable[Tensor]) -> list[Shared]:
    """Write the large tensors into two files.

    What is frozen has a file of its own, and moves there: the tensor objects of this process then show that file, so
    that the base exists once.
    """
    base = {_identify(t) for t in frozen if t.nbytes >= LARGE and _is_plain(t)}
    keys, files, freed = list(packer.places), list[Shared](), 0
    for moves in (False, True):
        places = [i for i, key in enumerate(keys) if (key in base) == moves]
        shapes = [torch.empty(keys[i][1], dtype=keys[i][2], device="meta") for i in places]
        try:
            files.append(Shared(allocate(shapes), shapes, places))
        except OSError:
            forget(f.handle for f in files)
            raise
        for i, room in zip(places, place_tensors(shapes, files[-1].handle), strict=True):
            room.copy_(packer.objects[i][0].detach())
            for thing in packer.objects[i] if moves else ():
                thing.data = room
            freed += room.nbytes if moves else 0
            if freed > OFTEN:  # small blocks stay with the process otherwise, and the base would be there twice
                return_memory()
                freed = 0
    return files


def allocate(shapes: Any) -> int:
    """Create a temporary file with room for these tensors, and return a handle of it."""
    size = count_bytes(shapes)
    with tempfile.TemporaryFile() as file:
        try:
            if hasattr(os, "posix_fallocate"):  # a full disk raises an error here; later it would kill the process
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                os.truncate(file.fileno(), size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from error
        return os.dup(file.fileno())


def forget(handles: Iterable[int]) -> None:
    """Close files that every process has mapped; the system frees them with the last of them."""
    for handle in handles:
        os.close(handle)


def count_bytes(shapes: Any) -> int:
    """Return the size in bytes of the shared file for these tensors."""
    return max(_find_places(tree_flatten(shapes)[0])[0][-1], 1)


def place_tensors(shapes: Any, handle: int) -> Any:
    """Return real tensors in one shared file for a tree of meta tensors."""
    leaves, structure = tree_flatten(shapes)
    begins, sizes = _find_places(leaves)
    memory = torch.frombuffer(mmap.mmap(handle, count_bytes(shapes)), dtype=torch.uint8)
    return tree_unflatten([memory[b : b + n].view(leaf.dtype).view(leaf.shape)
                           for b, n, leaf in zip(begins, sizes, leaves, strict=False)], structure)  # fmt: skip


def _find_places(leaves: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Return the offsets of the tensors in the shared file, with the end of the last one, and their sizes in bytes."""
    sizes = [leaf.numel() * leaf.element_size() for leaf in leaves]
    begins = [0]
    for size in sizes:
        begins.append((begins[-1] + size + 63) // 64 * 64)
    return begins, sizes


def _is_plain(t: Tensor) -> bool:
    return t.device.type == "cpu" and t.layout is torch.strided and t.is_contiguous() and t.is_leaf


def _identify(t: Tensor) -> Key:
    return t.data_ptr(), t.shape, t.dtype


def _rebuild_parametrized(kind: type[nn.Module], state: dict[str, Any]) -> nn.Module:
    module = kind.__new__(kind)
    module.__dict__.update(state)
    parametrize._inject_new_class(module)  # what register_parametrization does, with the originals already in place
    for name in module.parametrizations:  # type: ignore[union-attr]
        parametrize._inject_property(module, name)
    return module
