"""What of the unit and conformance suites is not run on Windows, and why: the only place that says so in advance.

Besides, a test is skipped that names what Python for Windows lacks (`os.fork`, `fcntl.flock` …: absent.py), or `needs`
an ability that Windows has not (abilities.py), or root; each says so in the list of skips.
"""

from __future__ import annotations

FILES = {
    "unit/test_agent.py": "servers, whose locks cannot be had on Windows",
    "unit/test_engines.py": "servers, whose locks cannot be had on Windows",
    "unit/test_interleavings.py": "its schedules take minutes under Wine",
    "unit/test_slot_interleavings.py": "its schedules take minutes under Wine",
    "conformance/test_kit.py": "the kit needs POSIX (docs/conformance.md)",
    "conformance/test_kit_fs_safe.py": "the kit needs POSIX (docs/conformance.md)",
    "unit/test_anchors.py": "paths through Linux' /proc",
    "unit/test_bench_limits.py": "about the benchmarks",
    "unit/test_bench_report.py": "about the benchmarks",
    "unit/test_birth.py": "Linux' statx and prctl",
    "unit/test_directory_log.py": "inotify",
    "unit/test_faults.py": "faults of the system calls of Linux",
    "unit/test_folders.py": "inotify",
    "unit/test_follow.py": "inotify",
    "unit/test_follow_waiters.py": "inotify",
    "unit/test_gevent.py": "gevent is tried on Linux",
    "unit/test_house.py": "reads the source, which is the same",
    "unit/test_inotify.py": "inotify",
    "unit/test_linux.py": "Linux",
    "unit/test_mounts.py": "Linux' mounts",
    "unit/test_posix.py": "macOS and the BSDs",
    "unit/test_tables.py": "Linux' tables of kernel locks",
    "unit/test_top.py": "`holdfast top`, which Windows does not have",
    "unit/test_tree.py": "processes and signals of POSIX",
    "unit/test_unfriendly.py": "swaps between the system calls of Linux",
}
TESTS_BY_REASON = {
    "its schedules take minutes under Wine": (
        "unit/test_queue.py::test_in_no_ordering_of_steps_a_waiter_is_passed_or_not_woken",
        "unit/test_queue.py::test_a_crash_at_any_step_of_queueing_does_not_stop_the_queue",
        "unit/test_queue.py::test_an_interruption_at_any_step_of_queueing_leaves_nothing",
        "unit/test_queue.py::test_a_waiter_killed_at_any_step_of_the_next_one_is_not_waited_for",
        "unit/test_queue.py::test_a_neighbour_that_sweeps_at_any_step_costs_a_new_try",
        "unit/test_queue.py::test_a_neighbour_that_sweeps_each_try_costs_the_ticket_not_the_lock",
        "unit/test_queue.py::test_a_newcomer_beside_a_waiter_that_is_let_in_stays_behind_it",
        "unit/test_lock.py::test_a_thread_inside_holds_though_its_owner_releases_in_another",
    ),
    "permission bits": (
        "unit/test_publish.py::test_a_creator_does_not_enter_after_a_contender_has_finished_its_file",
        "unit/test_publish.py::test_a_creator_takes_over_the_record_of_a_dead_contender",
        "unit/test_publish.py::test_a_creator_waits_while_a_contender_has_the_guard",
        "unit/test_publish.py::test_a_creator_that_died_before_it_wrote_does_not_block_the_lock",
        "unit/test_publish.py::test_the_mode_that_was_asked_for_is_set",
        "unit/test_kernel.py::test_a_new_file_has_the_mode_asked_for",
        "unit/test_face_sema.py::test_the_record_tells_the_process_the_time_and_the_tag",
        "unit/test_face_semats.py::test_a_free_lock_can_be_acquired_and_released",
        "unit/test_face_sidecar.py::test_a_free_lock_is_acquired_and_released",
        "unit/test_clean.py::test_a_file_that_was_never_finished_goes",
        "unit/test_takeover.py::test_a_dead_lock_that_may_only_be_removed_is_published_anew",
        "unit/test_takeover.py::test_a_lock_that_can_be_neither_written_nor_removed_is_explained",
    ),
    "Linux' /proc": (
        "unit/test_hold.py::test_a_copy_of_the_descriptor_does_not_keep_the_lock",
        "unit/test_keeper.py::test_signals_do_not_land_in_the_keepers_thread",
    ),
    "Linux' namespaces": ("unit/test_lock.py::test_the_lock_of_another_pid_namespace_is_not_judged_by_its_number",),
    "Linux' tables of kernel locks": (
        "unit/test_walk.py::test_a_held_lock_is_found_whatever_its_name",
        "unit/test_walk.py::test_a_large_or_read_only_file_is_not_read",
        "unit/test_survey.py::test_the_process_table_is_asked_once_for_many_files",
        "unit/test_survey.py::test_a_file_of_data_that_the_kernel_locks_is_found",
        "unit/test_survey.py::test_a_lock_held_by_a_child_that_inherited_it_names_the_child",
        "unit/test_survey.py::test_a_lock_on_a_subvolume_is_found_and_told_apart",
        "unit/test_kernel_sight.py::test_a_holder_that_watches_its_file_does_not_seem_to_wait",
    ),
    "who has a kernel lock, and what is in its file, cannot be read (docs/platforms.md)": (
        "unit/test_kernel.py::test_breaking_a_lock_does_not_split_it",
        "unit/test_kernel.py::test_a_tag_is_shown_while_the_lock_is_held",
        "unit/test_kernel.py::test_half_a_tag_is_removed",
        "unit/test_survey.py::test_an_old_empty_lock_file_is_called_empty",
        "unit/test_survey.py::test_an_empty_file_of_flock_is_not_free_for_other_protocols",
        "unit/test_survey.py::test_a_look_wakes_no_waiter[flock]",
    ),
    "pipes and descriptors in a selector": (
        "unit/test_asyncio_drive.py::test_a_wait_lasts_until_its_deadline",
        "unit/test_asyncio_drive.py::test_an_event_ends_the_wait",
        "unit/test_asyncio_drive.py::test_a_wait_on_a_closed_loop_can_be_collected",
        "unit/test_asyncio_drive.py::test_a_loop_that_cannot_wait_for_descriptors_waits_for_the_time",
        "unit/test_asyncio_drive.py::test_a_signal_ends_the_wait",
        "unit/test_asyncio_drive.py::test_a_cancelled_wait_leaves_no_reader_timer_or_subscription",
        "unit/test_asyncio_drive.py::test_a_bad_descriptor_leaves_none_watched",
        "unit/test_drive.py::test_a_wait_lasts_until_its_deadline",
        "unit/test_drive.py::test_an_event_ends_the_wait",
        "unit/test_drive.py::test_a_deadline_in_the_past_ends_the_wait_at_once",
        "unit/test_drive.py::test_a_system_without_poll_waits_for_descriptors",
        "unit/test_keeper.py::test_a_full_descriptor_table_does_not_end_the_thread",
        "unit/test_keeper.py::test_a_full_doorbell_can_be_rung",
        "unit/test_keeper.py::test_a_watch_without_a_descriptor_is_polled",
        "unit/test_keeper.py::test_a_look_that_fails_is_repeated",
        "unit/test_keeper.py::test_a_hold_that_ends_while_it_is_entered_is_not_kept",
    ),
    "a wait keeps no file open, so that its name can go": (
        "unit/test_observe.py::test_looking_again_does_not_open_the_file_again",
        "unit/test_queue.py::test_a_name_is_used_once",
    ),
    "a death is told by the end of its process, which a process that a test plays has not": (
        "unit/test_slots.py::test_a_killed_holder_is_not_waited_for",
        "unit/test_slots.py::test_a_crash_at_any_step_loses_no_slot",
        "unit/test_slots.py::test_an_event_on_one_slot_does_not_hide_that_on_another",
    ),
    "names that Windows has not": (
        "unit/test_bad_paths.py::test_a_path_that_names_no_file_is_refused",
        "unit/test_bad_paths.py::test_a_strange_name_is_accepted",
        "unit/test_bad_paths.py::test_a_device_is_refused",
        "unit/test_face_sema.py::test_a_strange_name_is_accepted",
        "unit/test_face_semats.py::test_a_strange_name_is_accepted",
        "unit/test_face_beads.py::test_a_name_that_is_none_keeps_the_daemon_out",
        "unit/test_face_beads.py::test_a_hostile_path_cannot_break_the_line",
        "unit/test_walk.py::test_what_is_found_comes_in_the_order_of_the_paths",
        "unit/test_events.py::test_a_path_cannot_begin_another_line_of_the_log",
    ),
    "the interpreter for Windows has its packages by another way than PYTHONPATH": (
        "unit/test_events.py::test_a_log_is_written_only_where_it_was_set_up",
    ),
    "`os.kill(pid, 0)` ends that process": (
        "unit/test_face_sidecar.py::test_a_dead_holder_is_taken_over_only_when_approved",
    ),
    "Wine tells of changes some time after them": (
        "unit/test_acquire.py::test_a_claimed_stale_file_is_polled_ever_more_slowly",
        "unit/test_acquire.py::test_a_guard_dropped_after_the_watch_was_armed_shortens_the_wait",
        "unit/test_acquire.py::test_the_watch_moves_to_the_new_inode",
    ),
    "Windows takes longer paths than Linux": ("unit/test_bad_paths.py::test_a_name_that_is_too_long_is_explained",),
    "a file that another program has open without sharing": (
        "unit/test_rivals.py::test_a_rival_that_may_still_rename_is_waited_for",
    ),
    "a directory has no guard (docs/platforms.md)": (
        "unit/test_rivals.py::test_a_crash_of_ours_does_not_stop_takeovers",
        "unit/test_rivals.py::test_one_of_two_takes_over_what_one_has_announced",
        "unit/test_rivals.py::test_the_announcement_of_another_is_left_alone",
        "unit/test_rivals.py::test_what_a_crash_has_left_is_removed_by_a_publisher",
        "unit/test_clean.py::test_only_an_announcement_no_longer_in_use_goes",
        "unit/test_clean.py::test_only_tickets_of_ended_processes_go",
    ),
    "portable Python is not used on Windows": (
        "unit/test_generic.py::test_kill_says_no_more_than_it_knows",
        "unit/test_generic.py::test_what_is_not_portable_is_refused",
        "unit/test_second_failures.py::test_without_kernel_locks_what_a_crash_has_left_is_judged_by_its_age",
    ),
    "symbolic links, which Wine only pretends to make": (
        "unit/test_links.py::test_directories_are_not_made_through_a_link_that_came_in_between",
    ),
    "under Wine a new file may have the number of one before it; on NTFS it has not": (
        "unit/test_ids.py::test_each_acquisition_of_one_process_has_a_name_of_its_own",
    ),
    "steps that must not take longer than a millisecond, or a second, as they do under Wine": (
        "unit/test_acquire.py::test_a_descriptor_that_stays_readable_makes_a_waiter_poll",
        "unit/test_remove.py::test_a_stream_of_short_holds_does_not_save_a_lock_from_being_broken",
        "unit/test_lock.py::test_a_long_wait_is_logged",
        "unit/test_semaphore.py::test_a_long_wait_is_logged",
    ),
}
TESTS = {name: why for why, names in TESTS_BY_REASON.items() for name in names}
"""By `file::name`, or `file::name[parameters]`."""
