//! `tollgate policies`.

use serde_json::Value;

use crate::{
    client::Connection,
    exit::{Answer, Outcome},
    output::{
        Output,
        table::{Table, list, text},
    },
};

pub(crate) async fn run(connection: &Connection, output: &Output) -> Outcome {
    let answer = connection.client()?.get("/policies", &[]).await?;
    output.print(|| answer.clone(), || table(&answer))?;
    Ok(Answer::Yes)
}

fn table(answer: &Value) -> String {
    let policies = list(answer, "policies");
    let mut columns = vec!["POLICY", "ROLE", "QUOTA", "STRATEGY", "KEY"];
    // Few policies have leases.
    let has_leases = policies.iter().any(|policy| lease(policy).is_some());
    columns.extend(has_leases.then_some("LEASE"));
    let mut table = Table::new(&columns);
    for policy in policies {
        let [name, role, quota, strategy, key] =
            ["name", "role", "quota", "strategy", "key"].map(|field| text(policy, field));
        let lease = has_leases.then(|| lease(policy).unwrap_or_default());
        table.row([name, role, quota, strategy, key].into_iter().chain(lease));
    }
    table.to_text()
}

/// The settings of a policy's leases.
fn lease(policy: &Value) -> Option<String> {
    let lease = policy.get("lease")?;
    let ttl = lease.get("ttl_ms")?.as_f64()?;
    Some(format!("{} units, {ttl}ms", text(lease, "max_units")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn leases_are_listed_where_there_are_some() {
        let policy = |name: &str| json!({"name": name, "role": "live", "quota": "9/s", "strategy": "gcra", "key": "peer"});
        let (plain, mut leased) = (policy("plain"), policy("leased"));
        let listing = table(&json!({"policies": [plain.clone()]}));
        assert!(!listing.contains("LEASE"), "{listing}");
        leased["lease"] = json!({"max_units": 64, "ttl_ms": 50.0});
        let mut precise = leased.clone();
        precise["lease"]["ttl_ms"] = json!(5.125);
        let listing = table(&json!({"policies": [plain, leased, precise]}));
        let lines: Vec<_> = listing.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "POLICY  ROLE  QUOTA  STRATEGY  KEY   LEASE",
                "plain   live  9/s    gcra      peer",
                "leased  live  9/s    gcra      peer  64 units, 50ms",
                "leased  live  9/s    gcra      peer  64 units, 5.125ms",
            ]
        );
    }
}
