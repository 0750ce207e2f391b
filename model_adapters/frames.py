"""Steps of one shape as one graph, which CUDA replays as a whole, and which may be compiled before.

A frame holds all tensors that a forward reads and changes; a pack of its shape is copied into them. What else a forward
depends on is the key of the frame. So each shape is captured once, and its graph finds its input at the same place.

Only steady forwards have frames: those of static shape that write no cache. Their attention is padded, whatever
the network's other forwards use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from dare_bench.diffusion.plan import PaddedView, Plan, Store, View
from dare_bench.errors import in_one_line
from dare_bench.log import log
from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.backbone.flex import allow_variants
from dare_bench.model_adapters.backbone.sdpa import gather
from dare_bench.model_adapters.batches import out_of_memory
from dare_bench.model_adapters.sampling.buckets import Sizes
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.model_adapters.sampling.drafts import Drafts
from dare_bench.model_adapters.sampling.loop import Result
from dare_bench.model_adapters.sampling.packing import Candidates, Pack
from dare_bench.model_adapters.sampling.ties import NearTies
from dare_bench.model_adapters.upload import mapped, tensors_of

PARTS = (DeviceState, NearTies, Drafts, Pack, Candidates, PaddedView, View)
Step = Callable[[DeviceState, Any], Result]
Forward = Callable[[], Result]
LAUNCH_BOUND = 4e12
"""The most multiplications (tokens times parameters) of a forward whose launches take the host longer than the device
needs for them. On an H200, launching the 32 layers of LLaDA-8B takes 18 ms, as computing 500 tokens does."""


class Capture(Protocol):
    """Captures what a forward does on the device; a call of the result does it again, with the same tensors."""

    def __call__(self, forward: Forward) -> Forward: ...


class CudaGraphs:
    """Captures forwards as CUDA graphs, which share their memory: one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # PyTorch's own is of the current device, and shared by all models
        self._last: ReferenceType[torch.cuda.CUDAGraph] | None = None

    def __call__(self, forward: Forward) -> Forward:
        before = self._last() if self._last is not None else None
        # A pool whose graphs are all gone cannot be used again.
        pool = torch.cuda.graph_pool_handle() if before is None else before.pool()
        torch.cuda.synchronize(self.stream.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=self.stream):
            result = forward()
        self._last = ref(graph)

        def replay() -> Result:
            graph.replay()
            return result

        return replay


def compiled(forward: Forward, backend: str = "inductor") -> Forward:
    """A forward as one graph, by PyTorch's compiler."""
    allow_variants()
    run: Forward = torch.compile(forward, fullgraph=True, dynamic=False, backend=backend)
    return run


class Frames:
    """The frames of a network. ``sizes`` are those of all its packs, so that shapes come again.

    Args:
        network: whose forwards have frames, while it is in evaluation mode.
        compiler: makes one graph of a forward; None: it is captured as it is.
        capture: captures the graph; None: it is called.
        most_tokens: the most tokens of a forward that has a frame.
    """

    def __init__(
        self,
        network: Any,
        compiler: Callable[[Forward], Forward] | None,
        capture: Capture | None = None,
        most_tokens: float = float("inf"),
    ) -> None:
        self.network, self.compiler, self.capture, self.most_tokens = network, compiler, capture, most_tokens
        self.sizes = Sizes()
        self._frames: dict[Hashable, StepFrame] = {}
        self._now: tuple[ReferenceType[Pack], StepFrame] | None = None

    def step(self, step: Step, state: DeviceState, network: Any) -> Result:
        """As ``step(state, network)``, by a frame where there is one. From then on the frame holds the tensors of
        ``state``. Where steps cannot be captured that need not be compiled, there are no frames any more."""
        pack = state.pack
        assert pack is not None
        many = pack.plan.tokens > self.most_tokens
        if not state.static or pack.fresh or many or network is not self.network or network.training:
            return step(state, network)
        if self._now is None or self._now[0]() is not pack:
            self._now = None
            try:
                frame = self._frame(step, state)
            except Exception as error:
                if self.compiler is not None or out_of_memory(error):
                    raise
                self.most_tokens = 0
                self.clear()
                log.warning("steps are not captured as CUDA graphs: %s", in_one_line(error))
                return step(state, network)
            self._now = ref(pack), frame
        return self._now[1].forward()

    def clear(self) -> bool:
        """Free the memory of all frames; were there any?"""
        self._now, had = None, bool(self._frames)
        self._frames.clear()
        return had

    def _frame(self, step: Step, state: DeviceState) -> StepFrame:
        """The frame of the pack's shape, holding its tensors."""
        view = padded_view(state)
        key = self._key(state, view)
        frame = self._frames.get(key)
        if frame is not None:
            frame.load(state, view)
            return frame
        self._forget(view)
        frame = StepFrame(step, state, view, self.network, self._gathered(view))
        frame.load(state, view)
        attention, self.network.attention = self.network.attention, BACKENDS["padded"]
        try:
            frame.make(self.compiler, self.capture)
        finally:
            self.network.attention = attention
        self._frames[key] = frame
        return frame

    def _gathered(self, view: PaddedView) -> dict[str, tuple[Tensor, Tensor]] | None:
        """Room for the cached keys and values of a frame: that of another one of its shape, since each is loaded before
        it runs. None: nothing is read."""
        reads = view.view.reads_RE
        if reads is None:
            return None
        for frame in self._frames.values():
            other = frame.view.view
            if other.reads_RE is not None and (other.reads_RE.shape, other.group) == (reads.shape, view.view.group):
                return other.gathered
        return {}

    def _key(self, state: DeviceState, view: PaddedView) -> Hashable:
        """All that the operations of a forward depend on, besides the contents of its tensors."""
        assert state.pack is not None
        shapes = tuple((name, x.shape, x.dtype) for name, x in _tensors(state, view).items())
        kinds = tuple(sampler.decision for sampler in state.kinds)
        weights = tuple(weight.data_ptr() for weight in self.network.parameters()) if self.capture else ()
        eos_ids = None if state.ties is None else state.ties.eos_ids
        eos_ids = eos_ids if state.drafts is None else state.drafts.eos_ids
        return kinds, eos_ids, state.mask_id, state.pack.candidates.width, view.view.group, shapes, weights

    def _forget(self, view: PaddedView) -> None:
        """Forget frames of fewer rows or cached columns, which grow during a run: they hold keys and values."""
        reads = view.view.reads_RE
        for key, frame in list(self._frames.items()):
            old = frame.view.view.reads_RE
            if reads is not None and old is not None and (len(old) < len(reads) or old.shape[1] < reads.shape[1]):
                del self._frames[key]


class StepFrame:
    """The tensors of forwards of one shape, as a state of their own."""

    def __init__(
        self,
        step: Step,
        state: DeviceState,
        view: PaddedView,
        network: Any,
        gathered: dict[str, tuple[Tensor, Tensor]] | None,
    ) -> None:
        pack = state.pack
        assert pack is not None
        self.arch = network.arch
        copy, copied_view = _copied([state, view])
        self.view = replace(copied_view, view=replace(copied_view.view, gathered=gathered))
        plan = Plan((pack.plan.tokens,))  # without the rows, which differ: attention knows them from the view alone
        plan.once(("padded", state.canvas_T.device), lambda: self.view)
        self.state: DeviceState = replace(copy, pack=replace(copy.pack, plan=plan), rows=[])
        self.lent_to: ReferenceType[DeviceState] = ref(state)
        self.forward: Forward = partial(step, self.state, network)

    def load(self, state: DeviceState, view: PaddedView) -> None:
        """Copy the tensors of a state and its pack, and let ``state`` share those that forwards change."""
        before, self.lent_to = self.lent_to(), ref(state)
        if before is not None and before is not state:  # of another loop, which goes on later
            self._give_back(before)
        given = _tensors(state, view)
        for name, own in _tensors(self.state, self.view).items():
            if own is not given[name]:
                own.copy_(given[name])
        for (mine, name), (other, _) in zip(_own(self.state), _own(state), strict=True):
            other[name] = mine[name]
        self._repeat_mask()
        if self.view.view.gathered is not None:
            assert state.pack is not None and state.pack.plan.cached is not None
            self._gather(state.pack.plan.cached.store)

    def _give_back(self, state: DeviceState) -> None:
        """Let a state have tensors of its own again."""
        for (own, name), (given, _) in zip(_own(self.state), _own(state), strict=True):
            if given[name] is own[name]:
                given[name] = own[name].clone()

    def _repeat_mask(self) -> None:
        """The mask of grouped queries, which attention keeps with the view."""
        view = self.view.view
        for times in {self.arch.heads // self.arch.attention(i).kv_heads for i in range(self.arch.layers)} - {1}:
            if times in view._repeated and view.mask is not None:
                view._repeated[times].copy_(view.mask.repeat(1, 1, times, 1))
            else:
                view.repeated_mask(times)

    def _gather(self, store: Store) -> None:
        """The keys and values that the rows read."""
        view = self.view.view
        assert view.gathered is not None and view.reads_RE is not None
        for i in range(self.arch.layers):
            for name, stored in ((f"k{i}", store.keys[i]), (f"v{i}", store.values[i])):
                if name not in view.gathered:
                    room = gather(view, stored, stored.dtype)
                    view.gathered[name] = room, room.flatten(0, 1)
                else:
                    view.gathered[name][0][:, : view.reads_RE.shape[1]] = stored[view.reads_RE]

    def make(self, compiler: Callable[[Forward], Forward] | None, capture: Capture | None) -> None:
        """Compile the forward and capture it; the state is as before."""
        if compiler is not None:
            self.forward = compiler(self.forward)
        if capture is None:
            return
        before = [(part[name], part[name].clone()) for part, name in _own(self.state)]
        try:
            self.forward()  # compiles, and lets libraries allocate what they need, which they cannot while capturing
        finally:
            for own, tensor in before:
                own.copy_(tensor)
        self.forward = capture(self.forward)


def padded_view(state: DeviceState) -> PaddedView:
    """The rows of a pack as padded attention takes them."""
    assert state.pack is not None
    return state.pack.plan.padded(state.canvas_T.device)


def _tensors(state: DeviceState, view: PaddedView) -> dict[str, Tensor]:
    """All tensors that a forward reads, by name, besides cached keys and values."""
    return tensors_of([state, view], PARTS)


def _own(state: DeviceState) -> list[tuple[dict[str, Any], str]]:
    """The tensors that forwards change: what holds them, and their names."""
    parts = [vars(part) for part in (state, state.ties, state.drafts) if part is not None]
    return [(part, name) for part in (*parts, state.carried) for name, x in part.items() if isinstance(x, Tensor)]


def _copied(record: Any) -> Any:
    """A record with tensors of its own."""
    return mapped(record, PARTS, lambda _, x: x.clone())
