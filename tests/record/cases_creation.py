"""Making tensors, changing types, reading values, printing."""

from __future__ import annotations

from harness import ALL, Case, T

CASES: list[Case] = []
KINDS = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
for one in """
torch.tensor(3)
torch.tensor(3.5)
torch.tensor(True)
torch.tensor(1j)
torch.tensor([1, 2])
torch.tensor([1, 2.5])
torch.tensor([True, False])
torch.tensor([[1, 2], [3, 4]])
torch.tensor([])
torch.tensor([[]])
torch.tensor([1, 2], dtype=torch.float16)
torch.tensor([1.9, -1.9], dtype=torch.int32)
torch.tensor([0, 2, -1], dtype=torch.bool)
torch.tensor((1, (2)))
torch.tensor([torch.tensor(1), torch.tensor(2)])
torch.tensor([[torch.tensor(1.5)]])
torch.tensor(torch.ones(2))
torch.tensor([1, True])
torch.tensor([1, 1j])
torch.as_tensor([1, 2])
torch.zeros(2, 3)
torch.zeros((2, 3))
torch.zeros(2, dtype=torch.int32)
torch.zeros(())
torch.zeros(0, 3)
torch.ones(2, 3)
torch.ones([2], dtype=torch.bool)
torch.full((2, 2), 7)
torch.full((2,), 1.5)
torch.full((2,), True)
torch.full((2,), 3, dtype=torch.float32)
torch.full([], 2)
torch.empty(2, 3).shape
torch.zeros_like(torch.ones(2, 3, dtype=torch.int8))
torch.ones_like(torch.ones(2), dtype=torch.float64)
torch.full_like(torch.ones(2), 4)
torch.empty_like(torch.ones(3, 2)).shape
torch.arange(5)
torch.arange(5.0)
torch.arange(2, 7)
torch.arange(2, 7, 2)
torch.arange(0, 1, 0.25)
torch.arange(5, 0, -1)
torch.arange(5, 0, -2)
torch.arange(1.0, 2.0, 0.1)
torch.arange(0)
torch.arange(3, dtype=torch.float64)
torch.arange(0, 1, 0.1, dtype=torch.float64)
torch.arange(1, 10, 3, dtype=torch.int32)
torch.linspace(0, 1, 5)
torch.linspace(-3, 7, 11)
torch.linspace(1, 1, 3)
torch.linspace(0, 1, 1)
torch.linspace(0, 10, 4, dtype=torch.float64)
torch.linspace(5, -5, 6)
torch.logspace(0, 2, 3)
torch.eye(3)
torch.eye(2, 3)
torch.eye(3, dtype=torch.int64)
torch.tril_indices(3, 4)
torch.triu_indices(3, 3, 1)
torch.get_default_dtype()
torch.float32.itemsize
torch.float16.is_floating_point
torch.int8.is_floating_point
torch.complex64.is_complex
torch.finfo(torch.float32).eps
torch.finfo(torch.float16).max
torch.finfo(torch.bfloat16).eps
torch.finfo(torch.float64).min
torch.iinfo(torch.int8).max
torch.iinfo(torch.int64).min
torch.float is torch.float32
torch.long is torch.int64
torch.Size([2, 3])
torch.Size([2, 3]).numel()
torch.Size((2, 3)) + (1,)
torch.can_cast(torch.float32, torch.int32)
torch.can_cast(torch.int32, torch.float32)
torch.ones(2).new_zeros(3)
torch.ones(2).new_ones(2, 2)
torch.ones(2).new_full((2,), 3)
torch.ones(2, dtype=torch.int8).new_tensor([1.5])
torch.ones(2).new_empty(2).shape
torch.tensor([3]).item()
torch.tensor(2.5).item()
torch.tensor(True).item()
torch.tensor([[1, 2], [3, 4]]).tolist()
torch.tensor([1.5, 2]).tolist()
torch.tensor(7).tolist()
int(torch.tensor(3.7))
float(torch.tensor(3))
bool(torch.tensor([0.0]))
[1, 2, 3][torch.tensor(1)]
torch.tensor([1.0]).type()
torch.tensor([1]).type()
torch.tensor([1.0]).type(torch.float64)
torch.tensor([1.0]).type('torch.IntTensor')
torch.FloatTensor(2, 3).shape
torch.Tensor(2, 3).shape
torch.Tensor([1, 2])
torch.Tensor().shape
torch.LongTensor([1, 2])
torch.tensor([1.0]).to(torch.int64)
torch.tensor([1.0]).to('cpu')
torch.tensor([1.0]).to('cpu', torch.float64)
torch.tensor([1.0]).to(torch.ones(1, dtype=torch.int32))
torch.tensor([1]).type_as(torch.tensor([1.0]))
str(torch.tensor([1.0]).device)
f"{torch.tensor(1.23456):.2f}"
torch.is_floating_point(torch.ones(1))
torch.numel(torch.ones(2, 3))
torch.ones(2).double().dtype
(torch.ones(2).half().dtype, torch.ones(2).bfloat16().dtype, torch.ones(2).int().dtype, torch.ones(2).long().dtype)
(torch.ones(2).bool().dtype, torch.ones(2).byte().dtype, torch.ones(2).char().dtype, torch.ones(2).short().dtype)
torch.tensor([300, -1]).to(torch.uint8)
torch.tensor([2**31]).to(torch.int32)
torch.tensor([1e10, 70000.0]).to(torch.float16)
torch.tensor([1.0 + 1e-3]).to(torch.bfloat16)
""".strip().splitlines():
    CASES.append(Case(one, one, {}, ("float32",), False))
for to in KINDS:
    CASES.append(Case(f"to {to}", f"a.to(torch.{to})", {"a": T((3, 4), "positive")}, ALL if to == "complex64" else tuple(k for k in ALL if not k.startswith("complex"))))
for one in """
torch.tensor([1.0, 2.0])
torch.tensor([1.5, -2.25])
torch.tensor([1, 20, 300])
torch.tensor([True, False])
torch.tensor(3)
torch.tensor(3.14159)
torch.tensor([])
torch.tensor([[1, 2], [3, 4]])
torch.ones(2, 3, 2)
torch.tensor([1e-5, 1.0])
torch.tensor([1e10, 1.0])
torch.tensor([1e8, 2e8])
torch.tensor([float('nan'), 1.5, float('inf')])
torch.tensor([float('nan'), 1.0, float('-inf')])
torch.arange(2000)
torch.zeros(100, 100)
torch.arange(30)
torch.arange(30) / 7
torch.zeros(0, 3)
torch.tensor([1], dtype=torch.int32)
torch.tensor([1.0], dtype=torch.float64)
torch.tensor([1 + 2j, -0.5j])
torch.ones(2, requires_grad=True)
torch.tensor(-0.0)
torch.tensor([0.1, 1000.5])
torch.tensor([0.1, 10000.5])
torch.ones(2, dtype=torch.float16)
torch.ones(2, dtype=torch.bfloat16)
torch.tensor([[1.5, -22.25], [0, 100]])
torch.Size([2, 3])
""".strip().splitlines():
    CASES.append(Case(f"print {one}", f"repr({one}).replace('tinytorch.', 'torch.')", {}, ("float32",), False))
