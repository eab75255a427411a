//! Where our mocks answer otherwise than what was captured, and why. A difference without a reason fails the test, and
//! so does a reason that explains nothing.

use std::collections::BTreeSet;

use crate::compare::Difference;
use crate::raw::Exchange;

/// Call (name of the method, or listener, verb and path), path of the difference,
/// and why.
pub const REASONS: &[(&str, &str, &str)] = &[
    (
        "Account",
        "1.2.1",
        "the capture's mock answers an address that is none; real chains answer the one asked for",
    ),
    (
        "Account",
        "1.2.3",
        "numbers are given in the order of first questions; the gateway signs what it is told",
    ),
    ("AccountByAddress", "status", "without it no validation ever succeeds (finding J14), so ours answers"),
    ("AccountByAddress", "3", "ours names the coin as the chain does; nobody reads it"),
    ("AcquireMLNode", "1", "locks have names of their own"),
    ("AcquireMLNode", "2", "the lock stands in the path of the endpoint and joins a node's call to it"),
    ("AcquireMLNode", "status", "a node that is excluded is not given out again (contract mocks 4.1)"),
    ("BroadcastTx", "1.13", "the stub of the capture leaves the event out; the gateway waits for GetTx"),
    ("BroadcastTx", "1.6", "words for people"),
    ("DevshardEscrow", "1.6", "an application hash of the capture's stub; it is only ever handed on"),
    ("GetLatestBlock", "3.{1.1,1.4,1.5,2,3}", "empty parts and a time that no client reads"),
    ("GetNodeInfo", "status", "a host without CHAIN_ID asks for it, and ends when there is no answer"),
    ("GetRuntimeConfig", "2.1", "the marker of a change only ever grows here; it need not be a height"),
    ("GetRuntimeConfig", "2.7", "the time of the answer"),
    (
        "GetRuntimeConfig",
        "2.12",
        "the threshold is told here, so that no host has to ask for the epoch's group",
    ),
    ("GetTx", "2.1", "ours names the block that holds it"),
    ("GranteesByMessageType", "1.2", "ours names the key, which spares hosts another question"),
    ("PreservedNodesSnapshot", "status", "an answer that says there is none"),
    ("PreservedNodesSnapshot", "{1,2}", "ours preserves no nodes: the gateway's relaxed mode is not offered"),
    ("dapi GET /block/*", "{status,content-type,body}", "production programs never ask for blocks here"),
    ("dapi GET /nosuch", "{content-type,body}", "only the status of an unknown path is read"),
    (
        "dapi GET /v1/epochs/current/participants",
        "/active_participants/participants/*/{weight,ml_nodes/*/ml_nodes/*/poc_weight}",
        "a number instead of a number in quotes; both are read",
    ),
    (
        "dapi GET /v1/epochs/current/participants",
        "/active_participants/participants/*/ml_nodes/*/ml_nodes/*/{node_id,timeslot_allocation/*}",
        "the gateway reads neither outside its relaxed mode, which is not offered",
    ),
    (
        "dapi GET /v1/epochs/latest",
        "/{latest_epoch/poc_start_block_height,next_epoch_stages/set_new_validators}",
        "heights move on by a fixed length each epoch; the stub of the capture chose its own",
    ),
    ("dapi GET /versions", "/{initialized,revision,schema}", "keys that newer readers want"),
    ("node chat", "/{created,id,choices/*/message/content}", "what a node says, calls itself and when"),
    (
        "node chat",
        "/choices/*/logprobs/content",
        "as many tokens as were asked for; the stub always gives 12",
    ),
    ("node chat", "/usage/{prompt_tokens,completion_tokens,total_tokens}", "counts of another text"),
    ("node chat", "/{content,finish,usage}/{created,id}", "what a node calls itself and when"),
    (
        "node chat",
        "/content/choices/*/{delta/content,logprobs/content/*/token,logprobs/content/*/bytes}",
        "another text",
    ),
    ("node chat", "/content/choices/*/logprobs/content/*/top_logprobs/*/{bytes,token}", "another text"),
    ("node chat", "/usage/choices", "usage comes in a piece of its own, as OpenAI's does; hosts take both"),
    ("node chat", "/usage/usage/{prompt_tokens,completion_tokens,total_tokens}", "counts of another text"),
    ("node replay", "/{created,id,choices/*/message/content}", "what a node says, calls itself and when"),
    ("node replay", "/usage/{prompt_tokens,total_tokens}", "the prompt is counted by another tokenizer"),
    ("rpc GET /", "{content-type,body}", "a list for people"),
    ("rpc GET /nosuch", "{content-type,body}", "only the status of an unknown path is read"),
    ("rpc GET /block", "/error/data", "words for people"),
    (
        "rpc *",
        "/result/block/{data,evidence,last_commit}",
        "production programs read chain id and height alone",
    ),
    ("rpc *", "/result/block_id", "production programs read chain id and height alone"),
    (
        "rpc *",
        "/result/block/header/{version,time,last_block_id,last_commit_hash,data_hash,validators_hash,next_validators_hash,consensus_hash,app_hash,last_results_hash,evidence_hash,proposer_address}",
        "production programs read chain id and height alone",
    ),
    (
        "rpc *",
        "/result/node_info/{protocol_version,listen_addr,channels,other}",
        "production programs never ask for a status",
    ),
    (
        "rpc *",
        "/result/sync_info/{latest_block_hash,latest_app_hash,latest_block_time,earliest_block_hash,earliest_app_hash,earliest_block_height,earliest_block_time}",
        "production programs never ask for a status",
    ),
    ("rpc *", "/result/validator_info", "production programs never ask for a status"),
    (
        "websocket",
        "/result/data/value/{block_id,result_finalize_block,block/data,block/evidence,block/last_commit}",
        "a host takes a block with its height alone (fixture wire-july, ws)",
    ),
    (
        "websocket",
        "/result/data/value/block/header/{version,time,last_block_id,last_commit_hash,data_hash,validators_hash,next_validators_hash,consensus_hash,app_hash,last_results_hash,evidence_hash,proposer_address}",
        "a host takes a block with its height alone (fixture wire-july, ws)",
    ),
    ("websocket", "/result/data/value/TxResult/tx", "a host takes an event without its transaction"),
    ("websocket", "/result/data/value/TxResult/height", "the event comes at another height"),
    ("websocket", "/result/events/{tx.hash/*,tx.height/*}", "the event comes at another height"),
    (
        "websocket",
        "/result/data/value/TxResult/result/events/*/attributes/*/value",
        "settled by an order of the control interface here, not by the gateway: another settler, no payout",
    ),
    (
        "websocket",
        "/result/events/{devshard_escrow_settled.fees/*,devshard_escrow_settled.settler/*,devshard_escrow_settled.total_payout/*}",
        "settled by an order of the control interface here, not by the gateway: another settler, no payout",
    ),
    (
        "websocket",
        "/overflow",
        "no subscription is ever dropped; upstream's hosts stay deaf after it (finding J22)",
    ),
    (
        "websocket",
        "/{error,result}",
        "a repeated subscription replaces the older one instead of being refused",
    ),
    ("websocket", "/id", "events carry the id of the newest subscription"),
];

/// What was replayed so far.
#[derive(Debug, Default)]
pub struct Ledger {
    calls: usize,
    equal: usize,
    used: BTreeSet<usize>,
    unexplained: Vec<String>,
}

impl Ledger {
    /// Takes the differences of one call.
    pub fn take(&mut self, name: &str, exchange: Exchange) {
        self.calls += 1;
        self.equal += usize::from(exchange.found.is_empty());
        for Difference { path, text } in exchange.found {
            let of = |entry: &(&str, &str, &str)| fits(entry.0, &exchange.call) && fits(entry.1, &path);
            match REASONS.iter().position(of) {
                Some(at) => drop(self.used.insert(at)),
                None => self.unexplained.push(format!("{name}: {} {path}: {text}", exchange.call)),
            }
        }
    }

    /// Fails on what has no reason and on reasons without use; gives the table of the page.
    pub fn finish(self) -> String {
        let unused = (0..REASONS.len()).filter(|at| !self.used.contains(at)).map(|at| &REASONS[at]);
        let unused: Vec<_> = unused.collect();
        let unexplained = self.unexplained.join("\n");
        assert!(
            unexplained.is_empty() && unused.is_empty(),
            "no reason for:\n{unexplained}\nno use for: {unused:#?}"
        );
        let mut table = format!(
            "{} of {} captured calls are answered byte by byte or value by value as they were.\n\n| Call | Path | Why ours differs |\n|---|---|---|\n",
            self.equal, self.calls
        );
        for (call, path, why) in REASONS {
            table.push_str(&format!("| `{call}` | `{path}` | {why} |\n"));
        }
        table
    }
}

/// A pattern is a name with one choice of `{a,b}` at most, and a call may end with `*`.
fn fits(pattern: &str, text: &str) -> bool {
    if let Some(prefix) = pattern.strip_suffix('*')
        && text.starts_with(prefix)
    {
        return true;
    }
    let Some((before, rest)) = pattern.split_once('{') else { return pattern == text };
    let (choices, after) = rest.split_once('}').expect("a choice is closed");
    choices.split(',').any(|choice| fits(&format!("{before}{choice}{after}"), text))
}
