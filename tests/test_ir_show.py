"""Pictures: deterministic, complete, and with nothing on top of anything else."""

import base64
import xml.etree.ElementTree as ET
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from compiler.fake import fake_tensor, propagate
from compiler.ir import GraphModule, record
from compiler.ir.layout import GAP_X, crossings, layout, ranks
from compiler.ir.show import as_text
from tinytorch import ops


@st.composite
def dags(draw):
    n = draw(st.integers(1, 14))
    pairs = [(a, b) for b in range(n) for a in range(b)]
    return list(range(n)), draw(st.lists(st.sampled_from(pairs), max_size=25)) if pairs else []


@settings(deadline=None, max_examples=100)
@given(dags())
def test_rows_go_down_and_boxes_keep_their_distance(dag):
    names, edges = dag
    widths = {n: 20.0 + 7 * (n % 4) for n in names}
    got = layout(names, edges, widths)
    assert all(got.at[a][1] < got.at[b][1] for a, b in edges)
    for a in names:
        x, y = got.at[a]
        assert widths[a] / 2 <= x <= got.width - widths[a] / 2 and 0 < y < got.height
        for b in names:
            if a < b and got.at[b][1] == y:
                assert abs(got.at[b][0] - x) >= (widths[a] + widths[b]) / 2 + GAP_X - 1e-6
    for (a, b), path in got.paths.items():
        assert path[0] == got.at[a] and path[-1] == got.at[b]
        assert all(p[1] < q[1] for p, q in pairwise(path))


def test_a_node_without_operands_stands_right_above_its_user():
    assert ranks("abdc", [("a", "b"), ("b", "c"), ("d", "c")]) == {"a": 0, "b": 1, "c": 2, "d": 1}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20))
def test_crossings_are_counted_as_by_hand(edges):
    top, below = [f"a{i}" for i in range(7)], [f"b{i}" for i in range(7)]
    edges = list(dict.fromkeys(edges))
    down = {n: [] for n in (*top, *below)}
    for a, b in edges:
        down[f"a{a}"].append(f"b{b}")
    by_hand = sum((a - c) * (b - d) < 0 for i, (a, b) in enumerate(edges) for c, d in edges[:i])
    assert crossings([top, below], down) == by_hand


def test_a_tree_is_drawn_without_crossings():
    edges = [("r", "a"), ("r", "b"), ("b", "e"), ("a", "c"), ("b", "f"), ("a", "d")]
    assert layout("rabfecd", edges, dict.fromkeys("rabfecd", 20.0)).crossings == 0


def example():
    g = record(lambda x, y: (ops.exp(ops.add(x, y)), ops.neg(x)))
    for p in g.placeholders:
        p.meta["val"] = fake_tensor((2, 3), torch.float32)
    propagate(g)
    return GraphModule({}, g)


def test_text():
    assert as_text(example().graph).splitlines() == [
        "o    x  float32[2, 3]",
        "| o  y  float32[2, 3]",
        "* @  add = add(x, y)  float32[2, 3]",
        "| @  exp = exp(add)  float32[2, 3]",
        "@ |  neg = neg(x)  float32[2, 3]",
        "+ +  return exp, neg",
    ]


def test_a_notebook_gets_an_image_that_needs_no_trust():
    bundle = example()._repr_mimebundle_()
    assert bundle["text/plain"].startswith("o ")
    assert "<svg" not in bundle["text/html"] and "<script" not in bundle["text/html"]
    svg = base64.b64decode(bundle["text/html"].split("base64,")[1].split('"')[0]).decode()
    titles = [t.text for t in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["x", "y", "add", "exp", "neg", "output"]


def test_marks_and_colours_can_be_chosen(tmp_path):
    gm = example()
    picture = gm.show(colour=lambda n: "#123456", bold=lambda n: n.name == "exp")
    assert picture.svg.count("#123456") == 6 and picture.svg.count("#b00020") == 1
    picture.save(str(tmp_path / "g.svg"))
    assert (tmp_path / "g.svg").read_text() == picture.svg == gm.show(colour=lambda n: "#123456", bold=lambda n: n.name == "exp").svg
