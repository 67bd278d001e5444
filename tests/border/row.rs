//! A row: a sentence, and requests with the statuses that they must get.

/// The steps of one client, in order.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends the request as often as there are statuses, each on a connection of its own.
    Ask { request: String, statuses: Vec<String> },
    /// The last answer has this text in its body, where the application says what it saw.
    Sees(String),
    /// The last answer does not have this text.
    SeesNo(String),
    /// Each of these requests is refused, or the application does not see this text.
    NoneSees { requests: Vec<String>, text: String },
    /// Sends the request and closes the connection at once, so often.
    Leave { request: String, times: usize },
    /// Sends the request and closes the connection when the application has it, so often.
    LeaveLater { request: String, times: usize },
    /// Of all requests of this row at most so many have reached the application.
    Reached(usize),
    /// From here on the client has these options of TLS, by their number.
    Over(usize),
    /// From here on the client has this address.
    From(String),
}

/// A row about a client that does nothing wrong. It must not notice that there are rules against
/// others.
pub(crate) fn honest(name: &str) -> Row {
    Row { name: format!("honest: {name}"), steps: Vec::new() }
}

/// A row about a client that tries to get around the limit.
pub(crate) fn attempt(name: &str) -> Row {
    Row { name: format!("attempt: {name}"), steps: Vec::new() }
}

impl Row {
    /// Sends a request once for each status: `"200 200 200 429"`. `"400|429"` is either of the
    /// two, and `"-"` is a connection that ends without an answer.
    ///
    /// The request is its first line and its fields, with `\n` between them:
    ///
    /// * `"GET /"` or `"POST /login\nX-Api-Key: k1\n\nuser=al"`. `HTTP/1.1` is added, and `Host`
    ///   and `Content-Length`, unless they are there.
    /// * With a version at the end of the first line nothing is added: `"GET / HTTP/1.0"`. `\n`
    ///   becomes `\r\n`, and all else is sent byte for byte.
    /// * With `HTTP/2` as the version it is sent in that protocol. `Host` becomes `:authority`.
    ///
    /// `{id}` is the number of the row, and `{n}` that of the request within the row.
    pub(crate) fn ask(mut self, request: impl Into<String>, statuses: &str) -> Self {
        let statuses = statuses.split_whitespace().map(ToOwned::to_owned).collect();
        self.steps.push(Step::Ask { request: request.into(), statuses });
        self
    }

    /// Sends each of these requests once. All must get the same status.
    pub(crate) fn ask_each<R: Into<String>>(
        self,
        requests: impl IntoIterator<Item = R>,
        status: &str,
    ) -> Self {
        requests.into_iter().fold(self, |row, request| row.ask(request, status))
    }

    /// The application saw this, at the last request: `"x-api-key: k1"`, `"path: /api"`.
    pub(crate) fn sees(mut self, text: &str) -> Self {
        self.steps.push(Step::Sees(text.to_owned()));
        self
    }

    /// The application did not see this.
    pub(crate) fn sees_no(mut self, text: &str) -> Self {
        self.steps.push(Step::SeesNo(text.to_owned()));
        self
    }

    /// Each of these requests is refused, or is something else to the application: it does not see
    /// this.
    pub(crate) fn none_sees(mut self, requests: Vec<String>, text: &str) -> Self {
        self.steps.push(Step::NoneSees { requests, text: text.to_owned() });
        self
    }

    /// Sends a request and leaves at once, so often.
    pub(crate) fn leave(mut self, request: &str, times: usize) -> Self {
        self.steps.push(Step::Leave { request: request.to_owned(), times });
        self
    }

    /// Sends a request and leaves while the application works on it, so often.
    pub(crate) fn leave_later(mut self, request: &str, times: usize) -> Self {
        self.steps.push(Step::LeaveLater { request: request.to_owned(), times });
        self
    }

    /// At most so many requests of this row have reached the application.
    pub(crate) fn reached(mut self, most: usize) -> Self {
        self.steps.push(Step::Reached(most));
        self
    }

    /// The client has other options of TLS from here on, of those that
    /// [`SetUp::over_tls`](super::set_up::SetUp::over_tls) names.
    pub(crate) fn over(mut self, number: usize) -> Self {
        self.steps.push(Step::Over(number));
        self
    }

    /// The client has this address from here on: one of 127.0.0.0/8, or any with
    /// [`SetUp::behind_a_balancer`](super::set_up::SetUp::behind_a_balancer).
    pub(crate) fn from(mut self, address: &str) -> Self {
        self.steps.push(Step::From(address.to_owned()));
        self
    }
}
