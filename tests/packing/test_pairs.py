import numpy as np
import torch

from ade.packing.pairs import pair_slots


def test_the_pairs_of_tokens_are_found_and_padded_for_arrays_and_tensors():
    counts, starts = np.array([2, 1, 3]), np.array([0, 2, 3])
    ids = np.array([[2, 0], [1, 2]])
    slot, real = pair_slots(counts, starts, ids, 3)
    assert slot.tolist() == [[[3, 4, 5], [0, 1, 0]], [[2, 0, 0], [3, 4, 5]]]
    assert real.sum(2).tolist() == [[3, 2], [1, 3]]

    small = torch.tensor([2, 1, 3], dtype=torch.uint8)  # as a codebook stores its counts
    as_tensors = pair_slots(small, torch.from_numpy(starts), torch.from_numpy(ids), 3)
    assert np.array_equal(as_tensors[0].numpy(), slot)
    assert np.array_equal(as_tensors[1].numpy(), real)
