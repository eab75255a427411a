//! One chat call from its bytes to its last line in the log.

use scenario::control::{Hit, NodeCall, NodeOutcome, NodeRule};
use scenario::fault::{CallKind, Close};

use super::answer::Answer;
use super::config::Asked;
use super::gate::{Counted, Entry, Permit};
use super::http::{Connection, Request, push_answer};
use super::play::{Player, Witness, connection_header, error_body};
use super::pool::Pool;
use super::request::{self, BadBody, Chat};
use super::script::{self, Pace, Script, action_name, immediate, only_slows};

/// What becomes of the connection after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It may carry the next request.
    Keep,
    /// FIN.
    Fin,
    /// RST.
    Rst,
    /// The client has closed it.
    Gone,
}

/// A call while it runs: its log entry, and the rule that may hit it.
struct Call<'a> {
    pool: &'a Pool,
    node: usize,
    entry: NodeCall,
    rule: Option<&'a NodeRule>,
    hit: bool,
    ended: bool,
}

impl<'a> Call<'a> {
    /// Writes the first entry of the call.
    fn open(pool: &'a Pool, node: usize, mut entry: NodeCall, rule: Option<&'a NodeRule>) -> Self {
        // The call is known by the number of its first entry.
        entry.call = pool.call_log().push(|seq| NodeCall { seq, call: seq, ..entry.clone() });
        Self { pool, node, entry, rule, hit: false, ended: false }
    }

    /// Writes the last entry and counts the call.
    fn close(mut self, outcome: NodeOutcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: NodeOutcome) {
        self.ended = true;
        let Self { pool, node, entry, rule, hit, .. } = self;
        let counted = match outcome {
            NodeOutcome::Running | NodeOutcome::Completed => Counted::Completed,
            NodeOutcome::Faulted => Counted::Failed(rule.map_or("", |rule| action_name(&rule.action))),
            NodeOutcome::Rejected => Counted::Rejected,
            NodeOutcome::ClientCancelled => Counted::ClientCancelled,
            NodeOutcome::BadRequest => Counted::BadRequest,
            NodeOutcome::Killed => Counted::Failed("killed"),
        };
        pool.gate(*node).count(entry.kind, counted);
        entry.outcome = outcome;
        entry.ended_us = Some(pool.clock().now_us());
        entry.rule = rule.filter(|_| *hit).map(|rule| rule.id.clone());
        pool.call_log().push(|seq| NodeCall { seq, ..entry.clone() });
    }
}

/// A call that is dropped half-way was cut off with its node.
impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.end(NodeOutcome::Killed);
        }
    }
}

impl Witness for Call<'_> {
    fn hit(&mut self) {
        let Some(rule) = self.rule.filter(|_| !self.hit) else { return };
        self.hit = true;
        let entry = &self.entry;
        if crate::defects::forgets_hit(entry.call, entry.request_id.as_deref()) {
            return;
        }
        self.pool.hit_log().push(|seq| Hit {
            seq,
            at_us: self.pool.clock().now_us(),
            place: entry.node.clone(),
            rule: rule.id.clone(),
            action: action_name(&rule.action).to_owned(),
            kind: Some(entry.kind),
            request_id: entry.request_id.clone(),
            attempt: entry.attempt,
            call_seq: entry.call,
        });
    }

    fn status(&mut self, status: u16) {
        self.entry.status = Some(status);
    }

    fn content(&mut self, whole_event: bool) {
        let now_us = self.pool.clock().now_us();
        self.entry.first_content_us.get_or_insert(now_us);
        self.entry.content_events += u64::from(whole_event);
    }
}

/// Answers a chat request at a node. `lock` is the one in the path.
pub async fn answer(
    pool: &Pool,
    node: usize,
    connection: &mut Connection,
    request: Request,
    lock: Option<String>,
) -> After {
    let started_us = pool.clock().now_us();
    let Request { x_request_id, keep_alive, body, .. } = request;
    let read = request::read(&body, x_request_id.as_deref());
    drop(body);
    let mut entry = NodeCall {
        seq: 0,
        call: 0,
        node: pool.name(node).to_owned(),
        started_us,
        ended_us: None,
        first_content_us: None,
        request_id: None,
        salt: None,
        seed: None,
        x_request_id,
        lock,
        kind: CallKind::Execution,
        attempt: 1,
        stream: false,
        status: None,
        outcome: NodeOutcome::Running,
        rule: None,
        content_events: 0,
    };
    let mut chat = match read {
        Ok(chat) => chat,
        Err(bad) => {
            return refuse_body(Call::open(pool, node, entry, None), connection, &bad, keep_alive).await;
        }
    };
    entry.request_id = chat.request_id.take();
    entry.salt = chat.salt.take();
    entry.seed = chat.seed;
    entry.kind = chat.kind;
    entry.stream = chat.stream;
    entry.attempt = pool.attempt(node, &chat);
    let prepared = pool.prepared();
    let request_id = entry.request_id.as_deref();
    let rule = prepared.rule_for(&Asked { node, kind: chat.kind, request_id, attempt: entry.attempt });
    let mut call = Call::open(pool, node, entry, rule);
    if let Some(script) = rule.and_then(|rule| immediate(&rule.action)) {
        let played = Player::new(connection, None, &[], keep_alive, &mut call).play(&script).await;
        return finish(call, &script, played.is_ok(), keep_alive);
    }
    let permit = match worker(pool, node, chat.kind, connection).await {
        Worker::Here(permit) => permit,
        Worker::Gone => {
            call.close(NodeOutcome::ClientCancelled);
            return After::Gone;
        }
        Worker::Full => return reject(call, connection, keep_alive).await,
    };
    let behaviour = &prepared.config.nodes[node].behaviour;
    let pace = Pace {
        seed: prepared.config.seed,
        node: pool.name(node),
        key: &chat.key,
        attempt: call.entry.attempt,
        ttft: behaviour.ttft,
        token_interval: behaviour.token_interval,
    };
    let after = render_and_play(&chat, &pace, connection, call, keep_alive).await;
    drop(permit);
    after
}

async fn render_and_play(
    chat: &Chat,
    pace: &Pace<'_>,
    connection: &mut Connection,
    mut call: Call<'_>,
    keep_alive: bool,
) -> After {
    use scenario::fault::NodeFault;
    let mut answer = Answer::new(chat, pace.seed, call.pool.clock().unix_s());
    let fault = call.rule.map(|rule| &rule.action);
    let mut body = Vec::new();
    let script = if chat.stream {
        script::stream(&answer, pace, fault)
    } else {
        if matches!(fault, Some(NodeFault::DropFirstContent(true))) {
            answer.drop_first_token();
        }
        let with_usage = !matches!(fault, Some(NodeFault::OmitUsage(true)));
        let plan = answer.json(with_usage, &mut body);
        script::json(&answer, plan, pace, fault)
    };
    let played = Player::new(connection, Some(&answer), &body, keep_alive, &mut call).play(&script).await;
    finish(call, &script, played.is_ok(), keep_alive)
}

fn finish(call: Call<'_>, script: &Script, written: bool, keep_alive: bool) -> After {
    if !written {
        call.close(NodeOutcome::ClientCancelled);
        return After::Gone;
    }
    let spoilt = call.hit && call.rule.is_some_and(|rule| !only_slows(&rule.action));
    call.close(if spoilt { NodeOutcome::Faulted } else { NodeOutcome::Completed });
    match script.close {
        Close::Clean if keep_alive => After::Keep,
        Close::Clean | Close::Fin => After::Fin,
        Close::Rst => After::Rst,
    }
}

enum Worker {
    Here(Permit),
    Full,
    Gone,
}

async fn worker(pool: &Pool, node: usize, kind: CallKind, connection: &mut Connection) -> Worker {
    match pool.gate(node).enter(kind) {
        Entry::Go(permit) => Worker::Here(permit),
        Entry::Full => Worker::Full,
        Entry::Wait(mut place) => tokio::select! {
            permit = place.turn() => Worker::Here(permit),
            _gone = connection.closed_by_client() => Worker::Gone,
        },
    }
}

async fn reject(mut call: Call<'_>, connection: &mut Connection, keep_alive: bool) -> After {
    call.status(503);
    let body = error_body(503, "workers and queue of this node are full", "overloaded", None);
    let extra = format!("{}Retry-After: 1\r\n", connection_header(keep_alive));
    push_answer(&mut connection.out, 503, "application/json", &extra, body.as_bytes());
    write_small(call, connection, NodeOutcome::Rejected, keep_alive).await
}

async fn refuse_body(
    mut call: Call<'_>,
    connection: &mut Connection,
    bad: &BadBody,
    keep_alive: bool,
) -> After {
    call.status(400);
    let body = error_body(400, &bad.message, "invalid_request_error", bad.param);
    push_answer(&mut connection.out, 400, "application/json", connection_header(keep_alive), body.as_bytes());
    write_small(call, connection, NodeOutcome::BadRequest, keep_alive).await
}

async fn write_small(
    call: Call<'_>,
    connection: &mut Connection,
    outcome: NodeOutcome,
    keep_alive: bool,
) -> After {
    let written = connection.flush().await;
    call.close(outcome);
    match written {
        Ok(()) if keep_alive => After::Keep,
        Ok(()) => After::Fin,
        Err(_gone) => After::Gone,
    }
}
