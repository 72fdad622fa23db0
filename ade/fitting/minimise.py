"""L-BFGS in numpy: the minimum of a smooth convex function from its values and gradients."""

from collections import deque
from collections.abc import Callable

import numpy as np

HISTORY = 8  # steps whose curvature is kept
SUFFICIENT = 1e-4  # of the decrease that the gradient promises
HALVINGS = 12  # of a step that does not decrease the function enough
TOLERANCE = 1e-5  # relative decrease of a step
Function = Callable[[np.ndarray], tuple[float, np.ndarray]]  # value and gradient
Precondition = Callable[[np.ndarray], np.ndarray]  # about the product of the inverse Hessian and a gradient


def minimise(function: Function, start: np.ndarray, precondition: Precondition, iterations: int) -> np.ndarray:
    """Return where a function is least; ends early where a step would hardly lower it."""
    x, (value, gradient) = start, function(start)
    history: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=HISTORY)  # step, change of gradient, 1 / (y s)
    for _ in range(iterations):
        direction = -_times_inverse_hessian(gradient, history, precondition)
        slope = float(np.vdot(gradient, direction))  # minus twice the decrease that a full step would bring, about
        if -slope <= TOLERANCE * abs(value):
            break
        length = 1.0
        for _ in range(HALVINGS):
            new_value, new_gradient = function(x + length * direction)
            if new_value <= value + SUFFICIENT * length * slope:
                break
            length /= 2
        else:
            break

        step, change = length * direction, new_gradient - gradient
        curvature = float(np.vdot(step, change))
        if curvature > 1e-12:
            history.append((step, change, 1 / curvature))
        x, value, gradient = x + step, new_value, new_gradient
    return x


def _times_inverse_hessian(
    gradient: np.ndarray, history: "deque[tuple[np.ndarray, np.ndarray, float]]", precondition: Precondition
) -> np.ndarray:
    """Return the product of a gradient and the inverse Hessian that the history implies."""
    result, shares = gradient.copy(), []
    for step, change, inverse in reversed(history):
        share = inverse * float(np.vdot(step, result))
        result -= share * change
        shares.append(share)
    result = precondition(result)
    if history:
        _, change, inverse = history[-1]
        result /= max(inverse * float(np.vdot(change, precondition(change))), 1e-12)
    for (step, change, inverse), share in zip(history, reversed(shares), strict=True):
        result += (share - inverse * float(np.vdot(change, result))) * step
    return result
