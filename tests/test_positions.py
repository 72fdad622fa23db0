import numpy as np
import pytest
import torch

from ade.positions import sinusoidal


@pytest.mark.parametrize("dim", [1, 7, 8, 64])
@pytest.mark.parametrize("shape", [(0,), (5,), (2, 3)])
def test_arrays_and_tensors_are_encoded_alike(dim, shape):
    positions = np.random.default_rng(0).integers(0, 500, shape)
    encoded = sinusoidal(positions, dim)
    assert encoded.shape == (*shape, dim)
    assert encoded.dtype == np.float32
    np.testing.assert_allclose(encoded, sinusoidal(torch.from_numpy(positions), dim).numpy(), atol=1e-4)
