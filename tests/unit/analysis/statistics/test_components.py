"""Connected components of groups of nodes."""

from hpcprof.analysis.statistics.components import component_numbers, connected_components


def test_groups_that_share_a_node_are_one_component_named_after_its_lowest_node() -> None:
    assert connected_components([(4, 5), (2, 3), (9,), (5, 2)]) == {2: 2, 3: 2, 4: 2, 5: 2, 9: 9}
    assert connected_components([]) == {}


def test_components_are_numbered_by_their_lowest_nodes_and_nodes_without_a_group_are_alone() -> None:
    assert component_numbers([(3, 1), (4, 2)], 5).tolist() == [0, 1, 2, 1, 2]
