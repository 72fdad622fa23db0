"""A packed table whose books can be trained: the codes, which say which entries a row is made of, stay as they are."""

import torch
from torch import Tensor, nn

from ade.compression.table import PackedTable
from ade.packing.coded import TableShape


class TrainableTable(PackedTable):
    """A packed table whose books, gains and mean are parameters in float32, and the rotation where that is asked for.

    The stored scale of a stage then says how the pieces that share a book differ; that stays as it is.
    """

    def __init__(self, shape: TableShape, exact_dtype: torch.dtype = torch.float16, rotation: bool = True) -> None:
        super().__init__(shape, exact_dtype)
        stages = range(len(shape.stages))
        self.books = nn.ParameterList(nn.Parameter(self.get_buffer(f"book_{n}").float()) for n in stages)
        self.mean_values = nn.Parameter(self.mean.clone())
        self.gain_values = nn.Parameter(self.gains.clone())
        self.rotation_values = nn.Parameter(super().directions(), requires_grad=rotation)

    @classmethod
    def of(cls, packed: PackedTable, rotation: bool = True) -> "TrainableTable":
        """Return a packed table as one that can be trained."""
        made = cls(packed.shape, packed.exact.dtype, rotation)
        made.load(packed)
        return made

    @torch.no_grad()
    def load(self, packed: PackedTable) -> None:
        """Take over the rows of a packed table of the same shape."""
        self.fill(packed.state_dict())
        self.mean_values.copy_(packed.mean)
        self.gain_values.copy_(packed.gains)
        self.rotation_values.copy_(packed.directions())
        for number, stage in enumerate(self.shape.stages):
            scale = self.get_buffer(f"scale_{number}")  # (pieces, 1, 1)
            common = scale.abs().mean(0, keepdim=True) if stage.shared else scale.clone()
            self.books[number].copy_(packed.get_buffer(f"book_{number}") * common)
            scale.div_(torch.where(common == 0, 1, common))

    def book(self, number: int) -> Tensor:
        """Return the books of a stage as they are trained."""
        return self.books[number] * self.get_buffer(f"scale_{number}")

    def lengthening(self) -> Tensor:
        """Return the gains as they are trained."""
        return self.gain_values

    def directions(self) -> Tensor:
        """Return the rotation as it is trained."""
        return self.rotation_values

    def center(self) -> Tensor:
        """Return the mean as it is trained."""
        return self.mean_values

    @torch.no_grad()
    def packed(self) -> PackedTable:
        """Return the table with its arrays as bytes again."""
        made = PackedTable(self.shape, self.exact.dtype)
        made.load_state_dict({name: value for name, value in self.state_dict().items() if name in made.state_dict()})
        scale = _byte_scale(self.rotation_values, 1)
        made.fill({"rotation": (self.rotation_values / scale).round(), "rotation_scale": scale})
        made.fill({"mean": self.mean_values, "gains": self.gain_values})
        for number, book in enumerate(self.books):
            top = _byte_scale(book, (1, 2))  # one for all pieces where they share the book
            made.fill({f"book_{number}": (book / top).round()})
            made.fill({f"scale_{number}": self.get_buffer(f"scale_{number}") * top})
        return made


def _byte_scale(values: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Return what the values are divided by, along dimensions, to fit into signed bytes."""
    return values.abs().amax(dims, keepdim=True).clamp(min=1e-12) / 127
