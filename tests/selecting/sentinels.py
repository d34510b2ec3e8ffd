"""The tests over the limit that `make test` runs none the less: a round trip of each kind."""

from __future__ import annotations

SENTINELS = (
    # Several processes that save and load one model, and several devices.
    "tests/distributed/test_load.py::test_each_process_reads_only_its_part",
    "tests/distributed/test_save.py::test_tensorflow_loads_it_whole",
    "tests/distributed/test_save.py::test_new_values_of_all_processes",
    "tests/verbs/test_on_eight_devices.py::test_with_eight_devices[saving]",
    "tests/verbs/test_on_eight_devices.py::test_with_eight_devices[loading]",
    "tests/bridge/test_call_tf_meshes.py::test_gradients_over_a_mesh_are_those_of_jax[map]",
    # Programs in C, a browser, a server, and Beam.
    "tests/bridge/test_save_loaders.py::TestState::test_a_program_in_c",
    "tests/examples/test_litert_in_c.py::test_a_program_in_c_reads_digits",
    "tests/examples/test_browser.py::test_the_page_in_chromium",
    "tests/bridge/serving/test_serving_servers.py::test_a_new_version_takes_over_and_goes_back[serve-tensorflow]",
    "tests/bridge/test_beam.py::TestPipelines::test_results",
    # Random programs: a few of each kind.
    "tests/fuzzing/test_programs.py::test_programs_are_right_or_refused[0-6]",
    "tests/fuzzing/test_tf_programs.py::test_what_jax_gets_is_what_tensorflow_computes[0-0]",
    # Gradients: one function in every mode to the third order, and of one file in every loader.
    "tests/verbs/test_gradient_matrix.py::test_all_modes_to_the_third_order[elementwise]",
    "tests/verbs/test_gradient_matrix.py::test_gradients_are_those_of_jax[scan]",
    "tests/verbs/test_gradient_matrix.py::test_gradients_are_those_of_jax[variables]",
    "tests/bridge/test_save_gradients.py::test_gradients_are_those_of_jax[composites-serving_default-graph]",
    # Whole models, and large ones.
    "tests/bridge/test_to_jax_models.py::test_a_step_of_training[Equinox]",
    "tests/bridge/test_save.py::TestLarge::test_memory[numpy]",
    "tests/verbs/test_leaks.py::test_rounds_leave_nothing",
    "tests/verbs/test_scaling.py::test_save[residuals]",
    # Keras with each backend.
    "tests/bridge/test_keras_on_jax.py::test_on_the_jax_backend[few]",
    "tests/bridge/test_keras_on_tensorflow.py::test_gradients_are_those_of_jax",
    # Functions of rows, lifted loops, derivatives and residuals, and where a server runs them.
    "tests/bridge/batching/test_row_export.py::test_row_by_row[a_loop_for_each]",
    "tests/bridge/batching/test_row_export.py::test_across_rows[loop_for_all]",
    "tests/bridge/lifting/test_loops.py::test_loops_that_count_are_scans[backwards-n, 4]",
    "tests/bridge/lifting/derivatives/test_composed_functions.py::test_derivatives_at_edges[logsumexp]",
    "tests/bridge/chains/test_forward_and_backward.py::test_a_factorization_is_made_once[artifact]",
    # The table of cases: one dtype of each in each target.
    "tests/operations/test_jax.py::test_each_case_of_one_dtype",
    "tests/operations/test_tensorflow.py::test_each_case_of_one_dtype",
    "tests/operations/test_tensorflow_operations.py::test_each_case_of_one_dtype",
    "tests/operations/test_onnx_runtime.py::test_each_case_of_one_dtype",
    "tests/operations/test_litert.py::test_each_case_of_one_dtype",
    # Smaller files, and networks of any batch and time.
    "tests/verbs/test_exact.py::test_fewer_nodes_have_the_same_numbers",
    "tests/verbs/test_batch_and_time.py::test_a_batch_and_a_time[values-ONNX Runtime]",
    "tests/verbs/test_batch_and_time.py::test_a_batch_and_a_time[values-LiteRT]",
    # Files of earlier versions.
    "tests/golden/test_kinds.py::test_loaded_by_jax[1-jax-0.10.2-linear_algebra]",
    "tests/golden/test_kinds.py::test_loaded_by_tensorflow[1-jax-0.10.2-linear_algebra]",
    # Examples and pages, as they stand.
    "tests/examples/test_examples.py::test_digits",
    "tests/docs/test_pages.py::test_blocks_run[README.md]",
    "tests/policy/test_isolation.py::test_frameworks_are_left_out",
)
