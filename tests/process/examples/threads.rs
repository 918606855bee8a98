//! A program without async code.

use tollgate_tests::example::Stage;

#[test]
fn its_threads_let_each_tenant_have_its_quota_in_process_and_on_redis() {
    for stage in Stage::both() {
        let printed = stage.run("threads", &[]);
        let expected = "acme: 5 lines masked, 2 left out\nglobex: 2 lines masked, 0 left out\n";
        assert_eq!(printed, expected);
    }
}

#[test]
fn two_of_them_on_one_redis_share_the_quota() {
    let stage = Stage::on_redis();
    stage.run("threads", &[]);
    let printed = stage.run("threads", &[]);
    let expected = "acme: 0 lines masked, 7 left out\nglobex: 2 lines masked, 0 left out\n";
    assert_eq!(printed, expected);
}
