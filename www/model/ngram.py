"""The baseline: an interpolated modified Kneser-Ney model over bytes (Chen and Goodman 1998, three discounts an order).

    P_k(w | c) = max(n(c w) - D(n), 0) / n(c) + (D1 N1(c) + D2 N2(c) + D3 N3(c)) / n(c) * P_{k-1}(w | c')

n counts at the highest order and distinct left neighbours below it; c' is c without its first byte; P_0 is uniform.
Byte 0, which no text contains, ends a document, so both models pay for knowing where one ends.
"""

import math

import numpy as np

ORDER = 5


def stream(docs):
    """Every document between end marks, with a whole context of them in front."""
    return np.frombuffer(b"\0" * (ORDER - 1) + b"".join(d.encode() + b"\0" for d in docs), np.uint8).astype(np.uint64)


def grams(data, k):
    """[len(data) - k + 1] the k bytes that end at each place, as one number."""
    code = np.zeros(len(data) - k + 1, np.uint64)
    for i in range(k):
        code = code * np.uint64(256) + data[i : len(data) - k + 1 + i]
    return code


def find(keys, values, wanted):
    """The value beside each wanted key, 0 where it is missing."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


class KneserNey:
    def __init__(self, docs):
        self.orders = []  # highest first: (grams, counts, contexts, totals, mass left for the order below, discounts)
        keys, counts = np.unique(grams(stream(docs), ORDER), return_counts=True)
        for k in range(ORDER, 0, -1):
            n = [int((counts == i).sum()) for i in range(1, 5)]
            y = n[0] / (n[0] + 2 * n[1]) if all(n) else 0
            d = [i - (i + 1) * y * n[i] / n[i - 1] for i in (1, 2, 3)] if all(n) else [0.5, 0.5, 0.5]
            discounts = np.array([0.0] + d)
            contexts, where = np.unique(keys // np.uint64(256), return_inverse=True)
            totals = np.bincount(where, counts)
            left = np.bincount(where, discounts[np.minimum(counts, 3)]) / totals
            self.orders.append((keys, counts, contexts, totals, left, discounts))
            if k > 1:
                keys, counts = np.unique(keys % np.uint64(256 ** (k - 1)), return_counts=True)

    def probabilities(self, codes):
        """P of the last byte of each gram of ORDER bytes, given the bytes before it."""
        p = np.full(len(codes), 1 / 256)
        for k, (keys, counts, contexts, totals, left, discounts) in zip(range(1, ORDER + 1), reversed(self.orders)):
            code = codes % np.uint64(256**k)
            n, context = find(keys, counts, code), code // np.uint64(256)
            total = find(contexts, totals, context)
            own = np.maximum(n - discounts[np.minimum(n, 3)], 0) / np.maximum(total, 1)
            p = np.where(total > 0, own + find(contexts, left, context) * p, p)
        return p

    def bits_per_byte(self, docs):
        codes = grams(stream(docs), ORDER)
        some = codes[:: len(codes) // 20 or 1] // np.uint64(256) * np.uint64(256)
        sums = self.probabilities((some[:, None] + np.arange(256, dtype=np.uint64)).ravel()).reshape(-1, 256).sum(1)
        assert np.allclose(sums, 1), sums
        return float(-np.log(self.probabilities(codes)).sum() / math.log(2) / sum(len(d.encode()) for d in docs))
