"""Maximum flow against networkx."""

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.partition.flow import INF, Network

edges = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 20)), max_size=40)


@settings(deadline=None, max_examples=200)
@given(edges)
def test_value_and_cut_agree_with_networkx(edges):
    net, oracle = Network(), nx.DiGraph()
    net.node(0), net.node(9)
    oracle.add_nodes_from((0, 9))
    for a, b, c in edges:
        if a != b:
            net.edge(a, b, c)
            have = oracle.get_edge_data(a, b, {"capacity": 0})["capacity"]
            oracle.add_edge(a, b, capacity=have + c)
    value = net.max_flow(0, 9)
    assert value == nx.maximum_flow_value(oracle, 0, 9)
    there = net.sink_side(9)
    assert 9 in there and 0 not in there
    assert value == sum(d["capacity"] for a, b, d in oracle.edges(data=True) if a not in there and b in there)


@settings(deadline=None, max_examples=100)
@given(edges)
def test_the_cut_is_the_one_nearest_to_the_sink(edges):
    """The sink's side of every other minimum cut contains it."""
    net, oracle = Network(), nx.DiGraph()
    net.node(0), net.node(9)
    oracle.add_nodes_from((0, 9))
    for a, b, c in edges:
        if a != b and not oracle.has_edge(a, b):
            net.edge(a, b, c)
            oracle.add_edge(a, b, capacity=c)
    net.max_flow(0, 9)
    assert net.sink_side(9) <= set(nx.minimum_cut(oracle, 0, 9)[1][1]) | {9}


def test_an_unbounded_flow_says_so():
    net = Network()
    net.edge("s", "a", INF)
    net.edge("a", "t", INF)
    assert net.max_flow("s", "t") >= INF


def test_a_long_chain_needs_no_recursion():
    net = Network()
    for i in range(5000):
        net.edge(i, i + 1, 5 if i != 2500 else 2)
    assert net.max_flow(0, 5000) == 2
    assert net.sink_side(5000) == set(range(2501, 5001))


def test_dead_ends_are_left_behind():
    net = Network()
    for i in range(200):
        net.edge("s", f"dead{i}", 1)
        net.edge(f"dead{i}", "end", 1)
    net.edge("s", "a", 1)
    net.edge("a", "t", 1)
    assert net.max_flow("s", "t") == 1
