"""Processes that lease units, in the reference model: `python3 tests/redis/conformance/leases.py [SEEDS]`.

Every interval is checked: what is admitted never exceeds the strategy's promise without leases. Random processes, with requests and
responses that take up to two TTLs or are lost, crashes, clocks that run a thousandth slow or fast, refunds and requests without
leases; and planned worst cases, each of which also shows that one rule is needed: without it more is admitted.
"""
from fractions import Fraction as F
import heapq
import math
import random
import sys

import model

MS = 1_000

# What a process or a store may leave out, to show that it is needed.
RULES = ("reduced burst", "longer period", "end of the window", "life from the request", "refund of what has not refilled",
         "refunds of requests", "one refund")


class Store:
    """A strategy with leases, and all admissions under it."""

    def __init__(self, name, quota, ttl, options=None, without=None):
        self.name, self.quota, self.ttl, self.options, self.without = name, quota, ttl, options or {}, without
        self.state, plain = (model.STRATEGIES[name](*quota, **self.options) for _ in range(2))
        self.state.lease(ttl)
        if without == "reduced burst":
            self.state.capacity = plain.capacity
        if without == "longer period":
            self.state.period = plain.period
        self.admitted, self.ends = [], set()

    def life(self, now):
        return self.ttl if self.without == "end of the window" else self.state.life(now)

    def charge(self, now, n):
        """The units of a lease, as many as there are; how long they live; and a receipt of all."""
        n, receipt = self.state.take(now, min(n, self.state.room(now)), 1)
        if n and "window" in receipt:
            self.ends.add(receipt["window"])
        return n, self.life(now) if n else 0, receipt

    def ask(self, now, most=1):
        """Requests without a lease; how many are admitted."""
        n, _, _ = self.charge(now, most)
        self.admit(now, n)
        return n

    def admit(self, now, n=1):
        self.admitted.extend([now] * n)

    def give(self, now, receipt, units):
        if self.without == "refund of what has not refilled":
            receipt = {**receipt, "at": now}
        return self.state.give(now, receipt, units)

    def excess(self):
        """By how many units the promise is broken in the worst interval; 0 or less if it is kept."""
        requests, period, burst = self.quota
        times = sorted(self.admitted)
        if self.name in ("gcra", "token_bucket"):
            t, least, most = F(period, requests), math.inf, -math.inf
            for i, at in enumerate(times):
                least = min(least, i - at / t)
                most = max(most, i + 1 - at / t - least)
            return most - burst
        if self.name == "sliding_log":
            near = lambda first, last: last - first < period
        elif self.name == "sliding_window":
            near = lambda first, last: last - first <= period - period // self.options["buckets"]
        elif self.name == "calendar_window":
            near = lambda first, last: first // period == last // period
        else:
            ends = sorted(self.ends)
            window = lambda at: next((end for end in ends if end - period <= at < end), None)
            if any(window(at) is None for at in times):
                return math.inf
            near = lambda first, last: window(first) == window(last)
        first, most = 0, 0
        for last, at in enumerate(times):
            while not near(times[first], at):
                first += 1
            most = max(most, last + 1 - first)
        return most - requests


class Lease:
    """Units of a process whose clock advances by `speed` thousandths of true time."""

    def __init__(self, store, sent, charged, received, n, speed=1_000):
        self.store, self.charged, self.received = store, charged, received
        self.left, life, self.receipt = store.charge(charged, n)
        begin = received if store.without == "life from the request" else sent
        # The first instant at which the clock shows the end.
        self.end = begin + -(-life * 1_000 // speed)
        self.was_refunded = False

    def spend(self, now, n=1):
        """Admits requests; how many."""
        n = min(n, self.left) if self.received <= now < self.end else 0
        self.left -= n
        self.store.admit(now, n)
        t = getattr(self.store.state, "t", 0)
        if self.store.without != "refunds of requests" and n and now - self.charged < t:
            # They may be refunded to their requests.
            self.receipt["left"] -= n
        return n

    def refund(self, now):
        """Sent once, after the units have left the process."""
        if self.left and (not self.was_refunded or self.store.without == "one refund"):
            self.store.give(now, dict(self.receipt), self.left)
            self.was_refunded, self.end = True, -1

    def refund_request(self, now, spent_at):
        """The refund of a request that was admitted: it does not count any more if that gave anything back."""
        receipt = {**self.receipt, "left": 1}
        if self.store.give(now, receipt, 1):
            self.store.admitted.remove(spent_at)


# Planned worst cases. Each gets a store without one of the rules, or with all of them.

def hoarded(store):
    """The whole burst is leased at once and spent at the last instant, with all that refills from then on."""
    for speed in (999, 1_000, 1_001):
        begin = 10_000_000 * speed
        lease = Lease(store, begin, begin, begin, 99, speed)
        lease.spend(lease.end - 1, 99)
        for now in range(lease.end - 1, begin + 10 * store.ttl, MS // 2):
            store.ask(now, 99)


def late(store):
    """A lease that is received late is spent as late as it can be."""
    lease = Lease(store, 0, 0, store.ttl - 1, 99)
    lease.spend(2 * store.ttl - 2, 99)
    store.ask(2 * store.ttl - 2, 99)


def drained(store):
    """A lease is refunded when nearly all of it has refilled."""
    lease = Lease(store, 0, 0, 0, 99)
    now = math.floor((lease.left - F(1, 2)) * store.state.t)
    before = Lease(store, now, now, now, 99)
    lease.refund(now)
    after = Lease(store, now, now, now, 99)
    for held in (before, after):
        held.spend(before.end - 1, 99)
    for later in range(before.end - 1, now + 10 * store.ttl, MS // 2):
        store.ask(later, 99)


def refunded_twice(store):
    """A refund that is sent again takes off the units of others."""
    lease = Lease(store, 0, 0, 0, 8)
    others = Lease(store, 0, 0, 0, 99)
    for _ in range(2):
        lease.refund(1)
        store.ask(1, 8)
    others.spend(others.end - 1, 99)
    for now in range(others.end - 1, 10 * store.ttl, MS // 2):
        store.ask(now, 99)


def refunded_requests(store):
    """Requests are refunded, the key drains, and then the rest of their lease is refunded."""
    lease = Lease(store, 0, 0, 0, 4)
    lease.spend(1, 2)
    for _ in range(2):
        lease.refund_request(1, 1)
    now = math.ceil(2 * store.state.t)
    before = Lease(store, now, now, now, 99)
    lease.refund(now)
    after = Lease(store, now, now, now, 99)
    for held in (before, after):
        held.spend(before.end - 1, 99)
    for later in range(before.end - 1, now + 10 * store.ttl, MS // 2):
        store.ask(later, 99)


def logged(store):
    """All units of a log are leased at once and spent at the last instant; they come back as if they had been spent at once."""
    lease = Lease(store, 0, 0, 0, 99, 999)
    lease.spend(lease.end - 1, 99)
    store.ask(store.quota[1], 99)
    store.ask(store.quota[1] + model.spread(store.ttl), 99)


def edge(store):
    """A lease is charged just before the end of its window, and spent at its last instant, with all units of the windows after."""
    window = store.quota[1] // store.options.get("buckets", 1)
    store.ask(0)
    lease = Lease(store, window - 2 * MS, window - MS, window - MS, 99)
    lease.spend(lease.end - 1, 99)
    for now in range(window, 3 * store.quota[1], MS):
        store.ask(now, 99)
    for i, speed in enumerate((999, 1_000, 1_001)):
        begin = 10 * (i + 1) * store.quota[1]
        store.ask(begin)
        window_end = begin + window
        lease = Lease(store, window_end - 20 * MS, window_end - 20 * MS, window_end - 20 * MS, 99, speed)
        assert store.without or window_end - 60 < lease.end <= window_end
        lease.spend(lease.end - 1, 99)


def planned():
    """Name, store, worst case, and the rule that it shows to be needed."""
    # 2.985 and 2.55 units refill within the 51.05 ms by which a unit may be spent after its charge.
    for quota in ((10, 171 * MS, 20), (50, 1_000 * MS, 20)):
        for name in ("gcra", "token_bucket"):
            for case, rule in ((hoarded, "reduced burst"), (late, "life from the request"),
                               (drained, "refund of what has not refilled"), (refunded_requests, "refunds of requests"),
                               (refunded_twice, "one refund")):
                if quota[1] == 171 * MS or case != refunded_requests:
                    yield (name, quota, 50 * MS), case, rule
    yield ("sliding_log", (40, 5_000 * MS, 40), 50 * MS), logged, "longer period"
    for name, options in (("fixed_window", {}), ("list_window", {}), ("calendar_window", {})):
        yield (name, (40, 400 * MS, 40), 50 * MS, options), edge, "end of the window"
    for buckets in (2, 4, 8):
        yield ("sliding_window", (40, 800 * MS, 40), 50 * MS, {"buckets": buckets}), edge, "end of the window"


def check_planned():
    cases = 0
    for made, case, rule in planned():
        store, without = Store(*made), Store(*made, without=rule)
        for state in (store, without):
            case(state)
        cases += 1
        assert store.excess() <= 0, f"{case.__name__} of {made}: {store.excess()} units too many"
        assert without.excess() > 0, f"{case.__name__} of {made} does not need the rule {rule!r}"
    return cases


# Random processes.

SETTINGS = [
    ("gcra", (100, 1_000 * MS, 30), 50 * MS), ("gcra", (700, 1_000 * MS, 90), 40 * MS), ("token_bucket", (300, 1_000 * MS, 50), 50 * MS),
    ("fixed_window", (40, 180 * MS, 40), 50 * MS), ("list_window", (40, 30 * MS, 40), 50 * MS), ("calendar_window", (40, 200 * MS, 40), 50 * MS),
    ("sliding_log", (60, 1_000 * MS, 60), 10 * MS), ("sliding_window", (40, 400 * MS, 40), 60 * MS, {"buckets": 2}),
    ("sliding_window", (40, 400 * MS, 40), 60 * MS, {"buckets": 4}), ("sliding_window", (60, 400 * MS, 60), 60 * MS, {"buckets": 8}),
]


def run(setting, seed):
    """Processes that request, hoard, spend, refund and crash at random, and requests without leases."""
    rng, store = random.Random(seed), Store(*setting)
    queue, number = [], iter(range(1 << 30))
    at = lambda now, event: heapq.heappush(queue, (now, next(number), event))
    delay = lambda: rng.choice((0, rng.randrange(2 * MS), rng.randrange(store.ttl), rng.randrange(2 * store.ttl)))
    refill = hasattr(store.state, "t")

    def process(now, speed, begin):
        n, charged = rng.choice((2, 5, 20, 99)), now + delay()
        at(charged, lambda _: answer(now, charged, charged + delay(), n, speed))
        if now < begin + 3_000 * MS:
            at(now + rng.randrange(2 * store.ttl), lambda then: process(then, speed, begin))

    def answer(sent, charged, received, n, speed):
        lease = Lease(store, sent, charged, received, n, speed)
        # A response that is lost, or a crash: the units are charged, and never spent or refunded.
        if rng.random() < 0.15:
            return
        crashes_at = received + rng.randrange(store.ttl) if rng.random() < 0.1 else math.inf
        last = lease.end - 1
        instants = [max(received, now) for now in (last, last + 1, received, rng.randrange(received, max(received, last) + 1))]
        for now in instants:
            if now < crashes_at and rng.random() < 0.6:
                at(now, lambda then: spend(lease, then, rng.choice((1, 3, 99))))
        if crashes_at == math.inf and rng.random() < 0.7:
            taken = sent + (lease.end - sent) * 3 // 4
            at(max(received, taken), lambda then: take_back(lease, then))

    def take_back(lease, now):
        # The units leave the process before they are refunded.
        lease.end = -1
        if rng.random() < 0.9:
            at(now + delay(), lease.refund)

    def spend(lease, now, n):
        n = lease.spend(now, n)
        for _ in range(n):
            if refill and rng.random() < 0.1:
                at(now + delay(), lambda then: lease.refund_request(then, now))

    def ask(now):
        store.ask(now, rng.choice((1, 1, 4, 99)))
        if now < 3_000 * MS:
            at(now + rng.randrange(1, 40 * MS), ask)

    for _ in range(rng.randrange(1, 6)):
        at(rng.randrange(store.ttl), lambda now, speed=rng.choice((999, 1_000, 1_001)): process(now, speed, 0))
    at(0, ask)
    while queue:
        now, _, event = heapq.heappop(queue)
        event(now)
    return store


def check_random(seeds):
    admitted = 0
    for setting in SETTINGS:
        for seed in range(seeds):
            store = run(setting, seed)
            assert store.excess() <= 0, f"{setting}, seed {seed}: {store.excess()} units too many"
            admitted += len(store.admitted)
    return admitted


if __name__ == "__main__":
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f"{check_planned()} planned cases, {check_random(seeds)} random admissions: none too many")
