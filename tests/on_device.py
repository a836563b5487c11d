"""A plugin of pytest: tests make their tensors on a CUDA device.

``pytest tests/autograd --device cuda`` runs the tests of the contract with tensors on the device
that numba simulates, or on a real one. What a test reads as an array is copied to the host.
"""

import tapegrad as tg
from tapegrad.eager import creation

MADE = [
    "tensor", "array", "arange", "empty", "eye", "full", "identity", "linspace", "logspace", "ones",
    "tri", "zeros",
]  # fmt: skip


LEFT_OUT = {
    "arrays of NumPy become tensors of the host": """
        TestBackwardPasses.test_transforms
        TestBatches.test_batched_cotangents_give_the_jacobian
        TestForwardAndBackward.test_in_the_middle_of_a_graph
        TestForwardAndBackward.test_value_and_gradient TestHistoryOfTangents.test_of_hvp
        TestMemory.test_a_memory_map TestOnceDifferentiable.test_an_array_as_gradient
        TestOneResultTwice.test_a_write_to_one TestOneResultTwice.test_gradient
        TestSaved.test_zeros_only_if_they_are_wanted TestUse.test_differentiated
        TestUse.test_tangents_that_are_missing_are_zeros
        TestValuesAndDerivatives.test_two_levels TestWhatMustNotBeLost.test_results_as_arrays
        test_a_gradient_that_a_function_leaves_out test_a_method_of_tensors_on_an_array
        test_a_tangent_that_is_differentiated test_arguments_without_history_are_constants
        test_arrays_as_gradients
        test_beside_differences test_nested test_walks_of_arrays_are_those_of_tensors
        test_what_a_rule_is_told
    """,
    "reads values as an array, in code of the user": """
        TestNumpy.test_under_no_grad test_output_that_items_share test_packed_values
    """,
    "looks at memory of the host, or counts what is done on it": """
        TestAccumulation.test_accumulation_is_seen_through_the_array
        TestAfterBackward.test_retain_graph_keeps_them TestAfterBackward.test_saved_values
        TestAfterBackward.test_what_was_not_swept_is_kept TestChains TestCotangents.test_random
        TestDetails.test_memory TestFiles.test_pictures
        TestFreeing.test_saved_values_go_with_the_backward_pass
        TestIntermediates.test_a_branch_dies_alone TestIntermediates.test_a_chain_dies_at_once
        TestIntermediates.test_what_an_op_saved_dies_with_the_graph
        TestIntermediates.test_what_nothing_saved
        TestNoCycles.test_a_backward_inside_a_backward
        TestNoCycles.test_cotangents_are_dropped_when_they_were_swept
        TestNoCycles.test_views_and_bases
        TestNumbersOfCalls.test_after_long_calls_all_are_timed_again
        TestNumbersOfCalls.test_of_short_ops_few_are_timed
        TestTimes.test_selfs_of_functions_whose_parts_are_not_all_timed
        TestViews.test_an_input_as_it_is
        TestWhatIsSeen.test_forward_mode TestWhatMustNotBeLost.test_dtypes_without_derivatives
    """,
    "computed by CuPy": """
        TestCalls.test_several_outputs
        TestDetails.test_memory_of_several_results_and_of_work_in_place
        TestErrors.test_local_variables_of_frames
        TestGradientEdge.test_of_one_of_several_outputs
        TestHigherOrders.test_third_order_along_directions TestNoCycles.test_a_saved_output
        TestOptions.test_batched_gradients TestOptions.test_forward_mode
        TestSeveralOutputs.test_an_op TestSeveralOutputs.test_only_one_is_used
        TestTimes.test_ops_with_several_outputs TestUnusedOutputs.test_an_op_of_the_table
    """,
    "compiled functions take tensors of the host": """
        TestCompiledFunctions.test_gradients TestCompiledFunctions.test_numbers
        TestCompiledFunctions.test_several_results TestLeavesNoTrace.test_results_are_the_same
        TestNestedResults.test_gradients TestNestedResults.test_tangents
        TestNestedResults.test_tangents_of_compiled_functions_have_a_history
        TestLeavesThatRequireGrad.test_no_write_goes_unseen_by_compiled_functions
        TestWhatIsSeen.test_compiled_functions
        TestWhatIsSeen.test_compiled_functions_of_numbers_in_the_sweep
    """,
    "functions of complex numbers": """
        TestOptions.test_forward_mode_of_complex_numbers
    """,
    "the simulator runs one kernel at a time": """
        TestThreads.test_disjoint_graphs_at_once TestThreads.test_one_leaf_loses_nothing
        TestThreads.test_recorded_in_several_threads
        test_levels_batches_and_modes_belong_to_their_threads
    """,
}
"""Tests that are not of a device, or too long for the simulator, by the reason."""


def _made_on_device(make):
    def function(*args, device="cuda", **kwargs):
        return make(*args, device=device, **kwargs)

    return function


def _read_by_host(numpy):
    def function(tensor):
        return numpy(tensor if tensor.device == "cpu" or tensor.requires_grad else tensor.cpu())

    return function


def pytest_configure(config):
    for name in MADE:
        setattr(tg, name, _made_on_device(creation.CREATION[name]))
    tg.Tensor.numpy = _read_by_host(tg.Tensor.numpy)


def pytest_collection_modifyitems(config, items):
    names = {name for names in LEFT_OUT.values() for name in names.split()}
    kept, left_out = [], []
    for item in items:
        (kept if names.isdisjoint(_names_of(item)) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _names_of(item):
    """The name of the test, with and without that of its class, and that of the class."""
    cls = item.cls.__name__ if item.cls is not None else ""
    return {item.originalname, f"{cls}.{item.originalname}", cls}
