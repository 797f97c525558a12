"""``DataLoader``: batches of a dataset, in order, made by threads ahead of time if asked.

Stage: eager.  In: a dataset.  Out: an iterable of batches.  Workers are threads: NumPy frees the interpreter lock while it
copies, and nothing has to be pickled.  Mirrors ``torch.utils.data.DataLoader``.  Read next: ``collate``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tinytorch.rng import Generator
from tinytorch.utils.data.collate import default_collate, default_convert
from tinytorch.utils.data.dataset import IterableDataset
from tinytorch.utils.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler


@dataclass
class WorkerInfo:
    """Which worker this thread is."""

    id: int
    num_workers: int
    dataset: Any


class _Here(threading.local):
    info: WorkerInfo | None = None


_here = _Here()


def get_worker_info() -> WorkerInfo | None:
    """The worker that runs in this thread; None in the main thread."""
    return _here.info


class DataLoader:
    """Iterates batches of ``dataset``.  ``num_workers`` threads prepare ``prefetch_factor`` batches each ahead."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        if num_workers < 0:
            raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, timeout
        self.worker_init_fn, self.prefetch_factor = worker_init_fn, prefetch_factor or 2
        self.iterable = isinstance(dataset, IterableDataset)
        if self.iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader with IterableDataset: expected unspecified shuffle, sampler and batch_sampler option")
        if not self.iterable and sampler is None:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_sampler is None and batch_size is not None and not self.iterable:
            assert sampler is not None
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = None if batch_sampler is not None and batch_size == 1 and sampler is None else batch_size
        self.drop_last, self.sampler, self.batch_sampler, self.generator = drop_last, sampler, batch_sampler, generator
        batched = batch_sampler is not None or (self.iterable and batch_size is not None)
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)

    def __len__(self) -> int:
        if self.iterable:
            n = len(self.dataset)
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self.iterable:
            return self._iterate_iterable()
        keys = self.sampler if self.batch_sampler is None else self.batch_sampler
        assert keys is not None
        return map(self._fetch, keys) if self.num_workers == 0 else self._iterate_threads(keys)

    def _fetch(self, key: Any) -> Any:
        if self.batch_sampler is None:
            return self.collate_fn(self.dataset[key])
        many = getattr(self.dataset, "__getitems__", None)
        return self.collate_fn(many(key) if many is not None else [self.dataset[i] for i in key])

    def _iterate_iterable(self) -> Iterator[Any]:
        if self.batch_size is None:
            for sample in self.dataset:
                yield self.collate_fn(sample)
            return
        batch: list[Any] = []
        for sample in self.dataset:
            batch.append(sample)
            if len(batch) == self.batch_size:
                yield self.collate_fn(batch)
                batch = []
        if batch and not self.drop_last:
            yield self.collate_fn(batch)

    def _iterate_threads(self, keys: Iterable[Any]) -> Iterator[Any]:
        """Batches in the sampler's order; an error in a worker is raised where its batch is due."""
        ids = iter(range(self.num_workers))
        lock = threading.Lock()

        def start() -> None:
            with lock:
                number = next(ids)
            _here.info = WorkerInfo(number, self.num_workers, self.dataset)
            if self.worker_init_fn is not None:
                self.worker_init_fn(number)

        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self.num_workers, "tinytorch-loader", start) as pool:
            try:
                for key in keys:
                    waiting.append(pool.submit(self._fetch, key))
                    if len(waiting) >= self.num_workers * self.prefetch_factor:
                        yield waiting.popleft().result(self.timeout or None)
                while waiting:
                    yield waiting.popleft().result(self.timeout or None)
            finally:
                for future in waiting:
                    future.cancel()
