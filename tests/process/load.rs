//! Requests to several processes at once, and an account of what is answered.

use reqwest::{RequestBuilder, Response};
use tokio::task::JoinHandle;
use tollgate_tests::prelude::*;

/// What was answered.
pub(crate) trait Account: Send + 'static {
    /// Whose requests a task sends.
    type Sender: Copy + Send + 'static;

    /// Counts a request that is about to be sent.
    fn send(&mut self) {}

    fn add(&mut self, by: Self::Sender, response: reqwest::Result<Response>);
}

/// A running load.
pub(crate) struct Load<A> {
    account: Arc<Mutex<A>>,
    ends: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl<A: Account> Load<A> {
    /// Sends each of these requests again and again until the load is ended, by a task of its own.
    pub(crate) fn start(
        account: A,
        requests: impl IntoIterator<Item = (A::Sender, RequestBuilder)>,
    ) -> Self {
        let (account, ends) = (Arc::new(Mutex::new(account)), Arc::default());
        let tasks = requests.into_iter().map(|(by, request)| {
            let sends = repeat(by, request, Arc::clone(&account), Arc::clone(&ends));
            tokio::spawn(sends)
        });
        Self {
            tasks: tasks.collect(),
            account,
            ends,
        }
    }

    pub(crate) fn with<T>(&self, read: impl FnOnce(&A) -> T) -> T {
        read(&self.account.lock().expect("the account"))
    }

    /// Sends no more requests.
    pub(crate) async fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a task ends well");
        }
    }
}

async fn repeat<A: Account>(
    by: A::Sender,
    request: RequestBuilder,
    account: Arc<Mutex<A>>,
    ends: Arc<AtomicBool>,
) {
    while !ends.load(Ordering::Relaxed) {
        account.lock().expect("the account").send();
        let request = request.try_clone().expect("a request without a body");
        let response = request.send().await;
        account.lock().expect("the account").add(by, response);
        tokio::time::sleep(ms(1)).await;
    }
}
