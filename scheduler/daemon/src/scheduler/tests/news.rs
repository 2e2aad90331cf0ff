//! What Slurm says, in part or late. No Slurm is asked: what it would say is put in.

use super::*;

fn facts(rules: Result<BTreeMap<PoolName, Rules>, String>) -> Facts {
    Facts {
        nodes: Vec::new(),
        burst: Vec::new(),
        down: Vec::new(),
        usable: [("main".into(), vec!["n9".into()])].into(),
        refused: BTreeMap::new(),
        rules,
        offers: Vec::new(),
        stepmgr: true,
        hidden: Vec::new(),
    }
}

fn rules_for(account: &str) -> BTreeMap<PoolName, Rules> {
    let admits = hop_slurm::Admits {
        accounts: Some(vec![account.to_owned()]),
        ..hop_slurm::Admits::default()
    };
    let rules = Rules {
        partition: "p".into(),
        admits,
        ..Rules::default()
    };
    [("main".into(), rules)].into()
}

/// From 24.05 on a rule on an account needs slurmdbd's word on the accounts below it.
#[tokio::test]
async fn without_slurmdbd_nodes_are_learnt_and_the_rules_known_last_hold() {
    let mut house = House::new();
    house.scheduler.news.rules = Some(rules_for("lab"));
    let knows_node = |house: &House| house.scheduler.pilot_jobs.pool_of(&"n9".into()).is_some();
    assert!(!knows_node(&house));
    house.scheduler.facts(Ok(facts(Err("slurmdbd is down".into()))));
    assert!(knows_node(&house));
    assert_eq!(house.scheduler.news.rules, Some(rules_for("lab")));
    let said = house.scheduler.news.problems();
    let [said] = &said[..] else { panic!("{said:?}") };
    assert!(
        said.contains("the rules known last are kept): slurmdbd is down"),
        "{said}"
    );
    house.scheduler.facts(Ok(facts(Ok(rules_for("course")))));
    assert_eq!(house.scheduler.news.rules, Some(rules_for("course")));
    assert_eq!(house.scheduler.news.problems(), Vec::<String>::new());
}

/// The configuration has a new pool, and nobody could say yet whom its partition takes.
#[tokio::test]
async fn a_pool_whose_rules_nobody_knows_lends_to_nobody() {
    let mut house = House::new();
    house.scheduler.news.rules = Some(BTreeMap::new());
    house.scheduler.facts(Ok(facts(Err("slurmdbd is down".into()))));
    house.seat(7, "ada", "n0");
    let (ada, mut mailbox) = house.connect("ada", Role::Replica);
    house.ask(ada, &mut mailbox, up("ada", "a", 1, 7, "n0"));
    let answer = house.ask(ada, &mut mailbox, submit("a", 1));
    refused(
        &answer,
        "Slurm has not said yet whom the partition of pool main takes",
    );
    house
        .scheduler
        .facts(Ok(facts(Ok([("main".into(), Rules::default())].into()))));
    assert!(done(&house.ask(ada, &mut mailbox, submit("a", 2))));
}
