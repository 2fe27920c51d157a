"""
What a server counts and measures of itself. Inference, intake and control thread write, anybody
reads.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
import threading

import numpy as np

from lerobot_serve.telemetry.histogram import Histogram

RECENT_LIMIT = 512
MEDIAN_PERIOD_REQUESTS = 16
LOAD_WINDOW_NS = 10_000_000_000
# of requests in one forward pass
BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass
class ServerStatistics:
    """
    Counters since start, and the durations of the last requests of the present policy. What reads
    several counters holds the `lock`.
    """

    requests: int = 0
    chunks: int = 0
    superseded: int = 0
    # chunks for which a hidden state was found, and those whose hidden state was lost
    cache_hits: int = 0
    cache_misses: int = 0
    denoise_steps: int = 0
    # requests that the worker has in its hands
    executing_requests: int = 0
    drops: Counter = field(default_factory=Counter)
    # from arrival to answer, to begin, and of the policy alone; of chunks with actions
    latency: Histogram = field(default_factory=Histogram, compare=False)
    wait: Histogram = field(default_factory=Histogram, compare=False)
    inference: Histogram = field(default_factory=Histogram, compare=False)
    batches: Histogram = field(default_factory=lambda: Histogram(BATCH_SIZES), compare=False)
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False)
    # drops of `drops` that the record of a request tells
    _drops_with_record: Counter = field(default_factory=Counter)
    _inference_ms: deque = field(default_factory=lambda: deque(maxlen=RECENT_LIMIT))
    _wait_ms: deque = field(default_factory=lambda: deque(maxlen=RECENT_LIMIT))
    _service_s: deque = field(default_factory=lambda: deque(maxlen=RECENT_LIMIT))
    _service_median_s: float = 0.0
    _since_median: int = 0
    _busy: deque = field(default_factory=deque)
    _busy_ns: int = 0
    _busy_since_ns: int | None = None
    _arrivals_ns: deque = field(default_factory=deque)

    def reset_for_policy(self, service_s: float) -> None:
        """Forget the durations of another policy; this one needed `service_s` while warming up."""
        with self.lock:
            for durations in (self._inference_ms, self._wait_ms, self._service_s, self._busy):
                durations.clear()
            self._busy_ns = 0
            self._service_median_s = service_s

    def drop(self, reason: str, *, has_request_record: bool = False) -> None:
        """Count what was dropped; one `has_request_record` has a record of its own in the trace."""
        with self.lock:
            self.drops[reason] += 1
            self._drops_with_record[reason] += has_request_record

    def arrived(self, now_ns: int, *, superseded: bool) -> None:
        with self.lock:
            self.requests += 1
            self.superseded += superseded
            self._arrivals_ns.append(now_ns)
            self._cut(now_ns)

    def begin(self, now_ns: int, requests: int = 1) -> None:
        """Note that the worker starts on so many requests, whatever becomes of them."""
        with self.lock:
            self._busy_since_ns, self.executing_requests = now_ns, requests

    def end(self, now_ns: int, predicted: int) -> None:
        """Note that the worker has done, having asked the policy for as many chunks."""
        with self.lock:
            begin_ns, self._busy_since_ns = self._busy_since_ns, None
            self.executing_requests = 0
            self._busy.append((begin_ns, now_ns))
            self._busy_ns += now_ns - begin_ns
            if predicted:
                self.batches.add(predicted)
                self._service_s.append((now_ns - begin_ns) / 1e9 / predicted)
                self._update_service_median()
            self._cut(now_ns)

    def served(
        self,
        *,
        wait_ms: float,
        inference_ms: float,
        denoise_steps: int = 0,
        found: bool = False,
        lost: bool = False,
    ) -> None:
        """Note one chunk, and whether a hidden state was found or lost for it."""
        with self.lock:
            self.chunks += 1
            self.denoise_steps += denoise_steps
            self.cache_hits += found
            self.cache_misses += lost
            self._inference_ms.append(inference_ms)
            self._wait_ms.append(wait_ms)
            self.wait.add(wait_ms / 1e3)
            self.inference.add(inference_ms / 1e3)

    def answered(self, latency_s: float) -> None:
        """Note that a chunk with actions was sent, so long after its request came."""
        with self.lock:
            self.latency.add(latency_s)

    def load(self, now_ns: int) -> float:
        """Return the share of the last seconds in which the worker was busy, with what it does."""
        begin = now_ns - LOAD_WINDOW_NS
        with self.lock:
            self._cut(now_ns)
            busy_ns = self._busy_ns
            if self._busy:
                busy_ns -= max(0, begin - self._busy[0][0])
            if self._busy_since_ns is not None:
                busy_ns += now_ns - max(self._busy_since_ns, begin)
        return busy_ns / LOAD_WINDOW_NS

    def arrivals(self, now_ns: int) -> int:
        """Return how many requests came in the last seconds."""
        with self.lock:
            self._cut(now_ns)
            return len(self._arrivals_ns)

    def service_s(self) -> float:
        """
        Return how long the worker is busy for one request: the median of late, or of the warm-up
        as long as there is none.
        """
        return self._service_median_s

    def optimistic_service_s(self) -> float:
        """Return the last duration where that is shorter than the median: it may be over."""
        with self.lock:
            latest_s = self._service_s[-1] if self._service_s else self._service_median_s
        return min(self._service_median_s, latest_s)

    def percentile_ms(self, what: str, percent: float) -> float:
        """
        Return a percentile of the last 'inference' or 'wait' durations, 0 when there is none.
        """
        with self.lock:
            values = list(self._inference_ms if what == 'inference' else self._wait_ms)
        return float(np.percentile(values, percent)) if values else 0.0

    def drop_counts(self) -> dict[str, int]:
        with self.lock:
            return dict(self.drops)

    def strays(self) -> Counter[str]:
        """Return the drops that no request's record tells, by reason."""
        with self.lock:
            return self.drops - self._drops_with_record

    def _update_service_median(self) -> None:
        """Every request asks for the median; it changes slowly and is worked out now and then."""
        count = len(self._service_s)
        if count < MEDIAN_PERIOD_REQUESTS or self._since_median == MEDIAN_PERIOD_REQUESTS:
            self._service_median_s = float(np.median(self._service_s))
            self._since_median = 0
        self._since_median += 1

    def _cut(self, now_ns: int) -> None:
        begin = now_ns - LOAD_WINDOW_NS
        # a running sum: each chunk tells the load, and there may be thousands in the window
        while self._busy and self._busy[0][1] <= begin:
            first_ns, last_ns = self._busy.popleft()
            self._busy_ns -= last_ns - first_ns
        while self._arrivals_ns and self._arrivals_ns[0] <= begin:
            self._arrivals_ns.popleft()
