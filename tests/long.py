"""Tests that `make test` leaves to `make long`: most cases of long enumerations, and some that shorter tests stand for.

They are marked `long` when they are collected, so `-m long` selects them in any run. A run of a part, and those of
`make coverage`, `make flaky` and `make variants`, have all tests.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

KEPT = {
    "cli/test_clean.py::test_a_thousand_locks": 0,
    "cli/test_commands.py::test_every_command_imports_all_that_it_uses": 5,
    "cli/test_contents.py::test_status_and_wait_agree_with_an_acquisition_for_any_content": 5,
    "cli/test_dropin_sema.py::test_a_script_sees_the_answers_of_sema": 4,
    "cli/test_dropin_semats.py::test_a_script_sees_the_answers_of_semats": 4,
    "cli/test_keeper_process.py::test_every_form_of_call_binds_the_lock_to_the_scripts_shell": 3,
    "cli/test_keeper_process.py::test_many_shells_at_once_get_in_one_after_the_other": 0,
    "cli/test_ls.py::test_ten_thousand_locks_are_listed": 0,
    "cli/test_timeline.py::test_": 3,
    "conformance/test_beads_records.py::test_a_large_record_does_not_stall_the_reader": 6,
    "conformance/test_kit.py::test_holdfast_conforms_to_every_protocol": 0,
    "conformance/test_kit.py::test_no_broken_implementation": 8,
    "conformance/test_kit.py::test_the_example": 0,
    "conformance/test_kit_packages.py::test_": 3,
    "conformance/test_sema_records.py::test_a_large_record_does_not_stall_the_search_for_its_protocol": 6,
    "conformance/test_sidecar_records.py::test_a_payload_survives_encoding_and_decoding": 0,
    "docs/test_pages.py::test_every_block_of_a_page_works[docs/howto/": 0,
    "docs/test_pages.py::test_every_block_of_a_page_works[docs/": 3,
    "engines/etcd/test_etcd_crowd.py::test_": 3,
    "engines/postgresql/test_failover.py::test_": 6,
    "examples/test_examples.py::test_every_example_prints_the_output_shown_on_its_page": 3,
    "model/test_model.py::test_an_unexpected_outcome_is_reported": 3,
    "model/test_model.py::test_the_smallest_model_keeps_its_promises_and_two_mutants_break_them": 0,
    "packaging/test_pytest_plugin.py::test_": 3,
    "packaging/test_wheel.py::test_": 0,
    "process/test_asyncio.py::test_no_increment_is_lost": 4,
    "process/test_attack.py::test_an_attacker_changes_no_file_outside_and_breaks_only_its_own_locks": 0,
    "process/test_beside.py::test_": 0,
    "process/test_crash.py::test_a_kill_at_any_step_leaves_a_lock_that_can_be_acquired": 9,
    "process/test_every_bytecode.py::test_nothing_is_left_of_an_operation_interrupted_before_any_bytecode": 8,
    "process/test_exclusion.py::test_a_fallback_for_publishing_or_waiting_admits_one_holder_at_a_time": 6,
    "process/test_exclusion.py::test_a_shell_script_and_holdfast_exclude_each_other": 0,
    "process/test_exclusion.py::test_kills_on_a_disk_admit_one_holder_and_lose_no_increment": 0,
    "process/test_fault_injection.py::test_a_command_never_ends_with_a_traceback": 5,
    "process/test_fault_injection.py::test_no_failed_system_call_leaks_or_is_misreported": 9,
    "process/test_filesystems.py::test_every_filesystem_excludes_and_shows_deaths_and_releases": 8,
    "process/test_flaky.py::test_": 0,
    "process/test_flock.py::test_readers_and_writers_exclude_each_other_and_lose_no_increment": 2,
    "process/test_foreign_fs_safe.py::test_": 4,
    "process/test_foreign_fs_safe_api.py::test_every_option_and_method_of_fs_safe_does_the_same_here": 4,
    "process/test_foreign_sema.py::test_a_storm_with_sema_or_semats_admits_one_holder_at_a_time": 4,
    "process/test_interruptions.py::test_an_interruption_between_two_steps_leaves_and_breaks_nothing": 6,
    "process/test_leftovers.py::test_every_kind_of_leftover_is_reported": 0,
    "process/test_many_locks.py::test_a_killed_process_keeps_none_of_a_thousand_locks": 0,
    "process/test_semaphore.py::test_a_fallback_for_publishing_or_waiting_lets_in_no_more_than_the_slots": 0,
    "process/test_semaphore.py::test_a_kill_at_any_moment_lets_in_no_more_than_the_slots_and_loses_none": 0,
    "process/test_silence.py::test_a_filesystem_whose_process_is_stopped_blocks_no_call": 0,
    "process/test_storm.py::test_contenders_of_every_kind_exclude_each_other": 7,
    "sim/test_mutants.py::test_every_planted_bug_is_found": 8,
    "sim/test_search.py::test_sleep_sets_lose_no_outcome_that_two_preemptions_reach": 0,
    "sim/test_workloads.py::test_no_interleaving_of_two_contenders_breaks_a_promise": 0,
    "sim/test_workloads.py::test_no_promise_is_broken_in_the_interleavings_tried": 12,
    "unit/test_aio_cancel.py::test_": 4,
    "unit/test_face_sidecar.py::test_a_foreign_lock_is_judged_as_the_options_say": 4,
    "unit/test_faults.py::test_no_fault_leaks_or_lies_and_each_has_the_outcome_of_the_page": 9,
    "unit/test_interleavings.py::test_one_of_two_contenders_is_inside_under_every_schedule": 8,
    "unit/test_kinds.py::test_a_look_at_any_object_under_a_kinds_name_is_harmless": 4,
    "unit/test_queue.py::test_a_look_at_any_step_of_a_hand_over_within_a_process_shows_its_waiter": 0,
    "unit/test_queue.py::test_an_object_put_in_place_of_a_ticket_at_any_step_is_left_alone": 6,
    "unit/test_queue.py::test_no_ordering_of_steps_passes_a_waiter_or_fails_to_wake_it": 4,
    "unit/test_slot_interleavings.py::test_a_slot_is_held_by_one_under_every_schedule": 9,
    "unit/test_unfriendly.py::test_a_swap_at_any_step_changes_nothing_outside_and_hangs_nothing": 8,
}
"""Tests whose names begin so, and which cases stay in `make test`: one in so many, or with 0 none."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: left to `make long` (long.py)")


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    met: Counter[str] = Counter()
    rows = re.compile("tests/(" + "|".join(map(re.escape, KEPT)) + ")")
    for item in items:
        if found := rows.match(item.nodeid):
            row = found[1]
            if KEPT[row] == 0 or met[row] % KEPT[row]:
                item.add_marker(pytest.mark.long)
            met[row] += 1
    if config.args == ["tests"] and (unknown := KEPT.keys() - met.keys()):
        raise pytest.UsageError(f"no test has a name of tests/long.py: {', '.join(sorted(unknown))}")
