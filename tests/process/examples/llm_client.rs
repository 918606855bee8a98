//! Processes that obey what a provider says.

use tollgate_tests::example::Stage;

#[test]
fn its_processes_get_all_their_calls_answered_in_process_and_on_redis() {
    for (stage, processes) in [(Stage::in_process(), 1), (Stage::on_redis(), 2)] {
        // No more than the account has, since no time passes.
        let printed = stage.run("llm_client", &[("CALLS", "5")]);
        for process in 1..=processes {
            let answered = format!("process {process}: 5 calls answered\n");
            assert!(printed.contains(&answered), "{printed}");
        }
        let last = format!(
            "the provider: {} calls answered, 0 refused\n",
            5 * processes
        );
        assert!(printed.ends_with(&last), "{printed}");
    }
}
