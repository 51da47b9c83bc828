"""Prints what Muon makes of parameters and gradients that follow a formula, computed by singular values.

    pip install numpy
    python muon_fixture.py

The unit test `three_steps_as_by_singular_values` of sdk/core/src/model/muon.rs holds the numbers. In float64: the singular
values go through the polynomials one by one, so the fixture shares no matrix product with the optimiser.
"""
import numpy as np

SHAPES = [("wide", 3, 5), ("tall", 4, 2), ("embed_tokens", 3, 2), ("norm", 1, 4)]
MATRICES = {"wide", "tall"}
LR, BETA1, BETA2, EPS, DECAY, CLIP, MOMENTUM, STEPS = 0.01, 0.9, 0.95, 1e-8, 0.1, 1.0, 0.95, 3
# Polar Express (arXiv 2505.16932), the second to the fifth polynomial for singular values from 0.001 to 1.
POLYNOMIALS = [
    (4.107059, -2.94785, 0.544843), (3.948691, -2.908902, 0.551819),
    (3.31842, -2.488488, 0.510049), (2.300652, -1.668904, 0.418807),
]


def value(index):
    """Value `index` of a formula, from -0.5 to 0.5: Knuth's multiplicative hash, rounded to float32."""
    return float(np.float32((index * 2654435761 % 2**32 >> 8) / 2**24 - 0.5))


def polar(update):
    left, sigma, right = np.linalg.svd(update * (1.97 / np.linalg.norm(update)), full_matrices=False)
    for a, b, c in POLYNOMIALS:
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return left @ np.diag(sigma) @ right


def main():
    sizes = [rows * cols for _, rows, cols in SHAPES]
    start = np.cumsum([0] + sizes)
    params = [np.array([value(start[i] + j) for j in range(sizes[i])]).reshape(s[1:]) for i, s in enumerate(SHAPES)]
    first, second = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    for step in range(1, STEPS + 1):
        grads = [np.array([value(1000 * step + start[i] + j) for j in range(sizes[i])]).reshape(s[1:])
                 for i, s in enumerate(SHAPES)]
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        for (name, rows, cols), p, g, m, v in zip(SHAPES, params, grads, first, second):
            g = g * min(1.0, CLIP / norm)
            if name in MATRICES:
                m[:] = MOMENTUM * m + g
                update = 0.2 * np.sqrt(max(rows, cols)) * polar(g + MOMENTUM * m)
            else:
                m[:] = BETA1 * m + (1 - BETA1) * g
                v[:] = BETA2 * v + (1 - BETA2) * g * g
                update = m / (1 - BETA1**step) / (np.sqrt(v / (1 - BETA2**step)) + EPS)
            p *= 1 - LR * DECAY if rows > 1 else 1
            p -= LR * update
    print(", ".join(f"{x:.6f}".rstrip("0") for p in params for x in p.flat))


if __name__ == "__main__":
    main()
