# SPDX-License-Identifier: Apache-2.0
"""
Counts and durations of the server. Any thread.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
import threading

import numpy as np

from lerobot_serve.telemetry.durations import Histogram, percentile

RECENT_LIMIT = 512
MEDIAN_PERIOD_REQUESTS = 16
LOAD_WINDOW_NS = 10_000_000_000
# of requests in one forward pass
BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass
class ServerStatistics:
    """
    Counters since start, and recent durations of the current policy. Readers of several counters
    hold the `lock`.
    """

    requests: int = 0
    chunks: int = 0
    superseded: int = 0
    # chunks for which a hidden state was found, and those whose hidden state was lost
    recurrent_state_hits: int = 0
    recurrent_state_misses: int = 0
    # camera images whose embedding was in the policy's cache, and those that were embedded
    cache_hits: int = 0
    cache_misses: int = 0
    denoise_steps: int = 0
    # requests that the worker executes
    executing_requests: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    # swaps of the policy by how they ended, done or failed
    swaps: Counter[str] = field(default_factory=Counter)
    # durations of chunks with actions: arrival to reply, arrival to begin, policy only
    latency: Histogram = field(default_factory=Histogram, compare=False)
    wait: Histogram = field(default_factory=Histogram, compare=False)
    inference: Histogram = field(default_factory=Histogram, compare=False)
    batches: Histogram = field(default_factory=lambda: Histogram(BATCH_SIZES), compare=False)
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False)
    # drops that have a request record
    _drops_with_record: Counter[str] = field(default_factory=Counter)
    _inference_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_LIMIT))
    _wait_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_LIMIT))
    _service_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_LIMIT))
    # requests of each batch of `_service_s`
    _batch_sizes: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_LIMIT))
    _service_median_s: float = 0.0
    _batch_median: float = 1.0
    _single_s: float = 0.0
    _since_median: int = 0
    _busy: deque[tuple[int, int]] = field(default_factory=deque)
    _busy_ns: int = 0
    _busy_since_ns: int | None = None
    _arrivals_ns: deque[int] = field(default_factory=deque)

    def reset_for_policy(self, service_s: float) -> None:
        """Clear the durations of the previous policy; `service_s` is that of the warm-up."""
        with self.lock:
            for durations in (self._inference_ms, self._wait_ms, self._service_s, self._busy):
                durations.clear()
            self._batch_sizes.clear()
            self._busy_ns = 0
            self._service_median_s = self._single_s = service_s
            self._batch_median = 1.0

    def record_drop(self, reason: str, *, has_request_record: bool = False) -> None:
        """Count a drop; `has_request_record` if the trace has a record of the request."""
        with self.lock:
            self.drops[reason] += 1
            self._drops_with_record[reason] += has_request_record

    def record_swap(self, outcome: str) -> None:
        """Record the end of a swap of the policy, done or failed."""
        with self.lock:
            self.swaps[outcome] += 1

    def record_arrival(self, now_ns: int, *, superseded: bool) -> None:
        with self.lock:
            self.requests += 1
            self.superseded += superseded
            self._arrivals_ns.append(now_ns)
            self._expire(now_ns)

    def record_batch_start(self, now_ns: int, requests: int = 1) -> None:
        """Record that the worker begins a batch of `requests`."""
        with self.lock:
            self._busy_since_ns, self.executing_requests = now_ns, requests

    def record_batch_end(self, now_ns: int, predicted: int) -> None:
        """Record the end of a batch; `predicted` requests reached the policy."""
        with self.lock:
            begin_ns = now_ns if self._busy_since_ns is None else self._busy_since_ns
            self._busy_since_ns = None
            self.executing_requests = 0
            self._busy.append((begin_ns, now_ns))
            self._busy_ns += now_ns - begin_ns
            if predicted:
                self.batches.add(predicted)
                took_s = (now_ns - begin_ns) / 1e9
                self._service_s.append(took_s / predicted)
                if predicted == 1:
                    # a warm-up beside a served policy takes longer than what follows
                    self._single_s = min(self._single_s, took_s)
                self._batch_sizes.append(predicted)
                self._update_medians()
            self._expire(now_ns)

    def record_chunk(
        self,
        *,
        wait_ms: float,
        inference_ms: float,
        denoise_steps: int = 0,
        state_found: bool = False,
        state_lost: bool = False,
    ) -> None:
        """Record a chunk, and whether its hidden state was found or lost."""
        with self.lock:
            self.chunks += 1
            self.denoise_steps += denoise_steps
            self.recurrent_state_hits += state_found
            self.recurrent_state_misses += state_lost
            self._inference_ms.append(inference_ms)
            self._wait_ms.append(wait_ms)
            self.wait.add(wait_ms / 1e3)
            self.inference.add(inference_ms / 1e3)

    def record_cache(self, *, hits: int, misses: int) -> None:
        """Record the images that a batch found in the policy's cache, and those it did not."""
        with self.lock:
            self.cache_hits += hits
            self.cache_misses += misses

    def record_latency(self, latency_s: float) -> None:
        """Record the time from the arrival of a request to its reply with actions."""
        with self.lock:
            self.latency.add(latency_s)

    def load(self, now_ns: int) -> float:
        """Return the share of the load window in which the worker was busy, until now."""
        begin = now_ns - LOAD_WINDOW_NS
        with self.lock:
            self._expire(now_ns)
            busy_ns = self._busy_ns
            if self._busy:
                busy_ns -= max(0, begin - self._busy[0][0])
            if self._busy_since_ns is not None:
                busy_ns += now_ns - max(self._busy_since_ns, begin)
        return busy_ns / LOAD_WINDOW_NS

    def arrivals(self, now_ns: int) -> int:
        """Return the number of requests in the load window."""
        with self.lock:
            self._expire(now_ns)
            return len(self._arrivals_ns)

    def service_s(self) -> float:
        """
        Return the busy time of the worker for one request: the recent median, or that of the
        warm-up before the first request.
        """
        return self._service_median_s

    def batch_size(self) -> float:
        """Return the requests of a batch, the median of those of `service_s`."""
        return self._batch_median

    def single_s(self) -> float:
        """
        Return how long a request alone takes: the last one of the warm-up, or the shortest since.
        """
        return self._single_s

    def optimistic_service_s(self) -> float:
        """Return the smaller of the last service time and the median."""
        with self.lock:
            latest_s = self._service_s[-1] if self._service_s else self._service_median_s
        return min(self._service_median_s, latest_s)

    def percentile_ms(self, what: str, percent: float) -> float:
        """Return a percentile of the recent 'inference' or 'wait' durations, 0 without any."""
        with self.lock:
            values = list(self._inference_ms if what == 'inference' else self._wait_ms)
        return percentile(values, percent) or 0.0

    def drop_counts(self) -> dict[str, int]:
        with self.lock:
            return dict(self.drops)

    def unrecorded_drops(self) -> Counter[str]:
        """Return the drops without a request record, by reason."""
        with self.lock:
            return self.drops - self._drops_with_record

    def _update_medians(self) -> None:
        """Update the medians every MEDIAN_PERIOD_REQUESTS requests; each request reads it."""
        count = len(self._service_s)
        if count < MEDIAN_PERIOD_REQUESTS or self._since_median == MEDIAN_PERIOD_REQUESTS:
            self._service_median_s = float(np.median(self._service_s))
            self._batch_median = float(np.median(self._batch_sizes))
            self._since_median = 0
        self._since_median += 1

    def _expire(self, now_ns: int) -> None:
        begin = now_ns - LOAD_WINDOW_NS
        # a running sum: each chunk reports the load, and the window may hold thousands
        while self._busy and self._busy[0][1] <= begin:
            first_ns, last_ns = self._busy.popleft()
            self._busy_ns -= last_ns - first_ns
        while self._arrivals_ns and self._arrivals_ns[0] <= begin:
            self._arrivals_ns.popleft()
