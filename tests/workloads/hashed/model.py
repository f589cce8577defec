"""A small language model with hashed experts (Roller et al. 2021): a token's id decides which expert it goes to. numpy alone."""

import numpy as np

VOCAB_SIZE, WIDTH, HIDDEN, EXPERTS, DEPTH = 256, 32, 64, 64, 2


def initial(seed):
    """Weights by name, float32."""
    rng = np.random.default_rng(seed)
    shapes = {"embed": (VOCAB_SIZE, WIDTH), "head": (WIDTH, VOCAB_SIZE)}
    for layer in range(DEPTH):
        shapes |= {f"w1.{layer}": (EXPERTS, WIDTH, HIDDEN), f"w2.{layer}": (EXPERTS, HIDDEN, WIDTH)}
    return {name: (rng.standard_normal(shape) * shape[-2] ** -0.5).astype(np.float32) for name, shape in shapes.items()}


def experts_forward(x, chosen, w1, w2):
    """Each row through its expert, a layer of relu between two matrices; what the backward pass needs besides."""
    out, kept = np.zeros_like(x), []
    for i in range(EXPERTS):
        rows = np.nonzero(chosen == i)[0]
        hidden = np.maximum(x[rows] @ w1[i], 0)
        out[rows] = hidden @ w2[i]
        kept.append((rows, hidden))
    return out, kept


def experts_backward(grad, x, kept, w1, w2):
    """Gradients of rows and of both matrices."""
    dx, dw1, dw2 = np.zeros_like(x), np.zeros_like(w1), np.zeros_like(w2)
    for i, (rows, hidden) in enumerate(kept):
        dw2[i] = hidden.T @ grad[rows]
        dhidden = (grad[rows] @ w2[i].T) * (hidden > 0)
        dw1[i] = x[rows].T @ dhidden
        dx[rows] = dhidden @ w1[i].T
    return dx, dw1, dw2


def loss_and_gradients(weights, tokens, targets):
    """Mean cross-entropy of the next token, and the gradient of each weight; tokens and targets are (count,) ids."""
    inputs, kept = [weights["embed"][tokens]], []
    for layer in range(DEPTH):
        chosen = (tokens * 31 + layer * 17) % EXPERTS
        out, saved = experts_forward(inputs[-1], chosen, weights[f"w1.{layer}"], weights[f"w2.{layer}"])
        kept.append(saved)
        inputs.append(inputs[-1] + out)
    logits = inputs[-1] @ weights["head"]
    logits -= logits.max(axis=1, keepdims=True)
    probs = np.exp(logits)
    probs /= probs.sum(axis=1, keepdims=True)
    rows = np.arange(len(tokens))
    loss = -np.log(probs[rows, targets]).mean()
    probs[rows, targets] -= 1
    probs /= len(tokens)
    grads = {"head": inputs[-1].T @ probs}
    grad = probs @ weights["head"].T
    for layer in reversed(range(DEPTH)):
        dx, dw1, dw2 = experts_backward(grad, inputs[layer], kept[layer], weights[f"w1.{layer}"], weights[f"w2.{layer}"])
        grads |= {f"w1.{layer}": dw1, f"w2.{layer}": dw2}
        grad = grad + dx
    grads["embed"] = np.zeros_like(weights["embed"])
    np.add.at(grads["embed"], tokens, grad)
    return float(loss), grads
