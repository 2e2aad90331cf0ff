//! Leaves out of a log what nothing needs any more (docs/state-format.md, "Compaction"): versions of groups and of the
//! process's sections that were replaced, with their bytes. What a restore finds is the same.
//!
//! Unsavable groups are made again by running their cells on the versions found by these cells. For each group with a
//! placeholder, the versions needed by its cells therefore stay. Records stay, each with its cells. Streams and chunks
//! are never examined. Writing is left to [`crate::writer`].

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Most cells run again for a group (`rerun.MOST`).
const RERUN_MAX: usize = 50;

/// Most versions examined, in all, for groups without a rerun.
const LOOKS_MAX: usize = 20_000_000;

/// A record: its text and its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub said: Map<String, Value>,
    pub body: Vec<u8>,
}

/// A record isn't as the form says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record isn't as the form says")]
pub struct Malformed;

/// A version of a group: the record, and the group's number there.
type Version = (usize, usize);

/// What is read of a group's version.
#[derive(Debug, Clone)]
struct Group {
    id: u64,
    /// Variables of the group.
    names: Vec<String>,
    /// Variables that functions in it may touch.
    touches: Vec<String>,
    has_placeholder: bool,
}

/// What is read of a record's cell.
#[derive(Debug, Clone, Default)]
struct Cell {
    touched: Vec<u64>,
    names: Vec<String>,
}

/// What is read of a record.
#[derive(Debug, Default)]
struct Index {
    full: bool,
    groups: Vec<Group>,
    gone: Vec<u64>,
    cell: Option<Cell>,
    sections: Vec<String>,
    /// Variables whose making an earlier compaction kept.
    compacted: Option<BTreeSet<String>>,
}

/// What is there after some records.
#[derive(Debug, Clone, Default)]
struct There {
    groups: BTreeMap<u64, Version>,
    sections: BTreeMap<String, usize>,
}

impl There {
    fn add(&mut self, at: usize, record: &Index) {
        if record.full {
            *self = Self::default();
        }
        for id in &record.gone {
            self.groups.remove(id);
        }
        for (number, group) in record.groups.iter().enumerate() {
            self.groups.insert(group.id, (at, number));
        }
        for section in &record.sections {
            self.sections.insert(section.clone(), at);
        }
    }
}

/// Leaves out what nothing needs.
///
/// # Errors
/// A record isn't as the form says: nothing may be left out then.
pub fn compact(records: &[Record]) -> Result<Vec<Record>, Malformed> {
    let Some(last) = records.len().checked_sub(1) else {
        return Ok(Vec::new());
    };
    let index: Vec<Index> = records
        .iter()
        .map(|r| read(&r.said))
        .collect::<Option<_>>()
        .ok_or(Malformed)?;
    let mut there = There::default();
    for (at, record) in index.iter().enumerate() {
        there.add(at, record);
    }
    let mut kept = Kept::default();
    kept.all(&there);
    let makings = kept.makings(&index, &there);
    let together = Together::of(records).ok_or(Malformed)?;
    let mut out = Vec::with_capacity(records.len());
    for (at, record) in records.iter().enumerate() {
        let mut record = kept.filtered(at, record).ok_or(Malformed)?;
        together.put(&mut record, at, last).ok_or(Malformed)?;
        out.push(record);
    }
    if let Some(record) = out.last_mut() {
        let names = makings.into_iter().map(Value::String).collect();
        record.said.insert("compacted".to_owned(), Value::Array(names));
    }
    Ok(out)
}

fn group(index: &[Index], (at, number): Version) -> &Group {
    &index[at].groups[number]
}

/// The versions that stay.
#[derive(Debug, Default)]
struct Kept {
    groups: BTreeSet<Version>,
    sections: BTreeSet<(usize, String)>,
}

impl Kept {
    fn all(&mut self, there: &There) {
        self.groups.extend(there.groups.values());
        self.present_sections(there);
    }

    fn present_sections(&mut self, there: &There) {
        let sections = there.sections.iter();
        self.sections
            .extend(sections.map(|(name, at)| (*at, name.clone())));
    }

    /// Keeps the versions for rerunning groups with a placeholder. Returns the variables whose reruns are possible,
    /// and those without any loss.
    fn makings(&mut self, index: &[Index], there: &There) -> BTreeSet<String> {
        let groups = there.groups.values().map(|version| group(index, *version));
        let (lost, others): (Vec<_>, Vec<_>) = groups.partition(|group| group.has_placeholder);
        let mut makings = BTreeSet::new();
        for group in lost {
            if let Some(needs) = Kept::of_making(index, group) {
                self.groups.extend(needs.groups);
                self.sections.extend(needs.sections);
                makings.extend(group.names.iter().cloned());
            }
        }
        let versions: usize = index.iter().map(|record| record.groups.len() + 1).sum();
        for group in others.into_iter().take(LOOKS_MAX / versions.max(1)) {
            if let Some(needs) = Kept::of_making(index, group)
                && needs.groups.is_subset(&self.groups)
                && needs.sections.is_subset(&self.sections)
            {
                makings.extend(group.names.iter().cloned());
            }
        }
        makings
    }

    /// Versions needed for a rerun of a group's cells. `None` means that the cells can't be run.
    fn of_making(index: &[Index], made: &Group) -> Option<Self> {
        let (wanted, cells) = cells(index, made);
        let first = &index[*cells.first()?];
        if first.full || first.cell.is_none() || cells.len() > RERUN_MAX || !is_whole(index, &wanted) {
            return None;
        }
        let (mut needs, mut there) = (Self::default(), There::default());
        for (at, record) in index.iter().enumerate() {
            if cells.binary_search(&at).is_ok() {
                needs.found(index, &there, at, &wanted);
                let all = (0..record.groups.len()).map(|number| (at, number));
                needs.groups.extend(all);
            }
            for (number, group) in record.groups.iter().enumerate() {
                if group.names.iter().any(|name| wanted.contains(name)) {
                    needs.groups.insert((at, number));
                }
            }
            there.add(at, record);
        }
        Some(needs)
    }

    /// Adds what the cell of a record found, as `rerun._needed` says.
    fn found(&mut self, index: &[Index], there: &There, at: usize, wanted: &BTreeSet<String>) {
        let Some(cell) = &index[at].cell else {
            return;
        };
        let mut owner = BTreeMap::new();
        let mut todo: Vec<u64> = Vec::new();
        for (id, version) in &there.groups {
            let group = group(index, *version);
            owner.extend(group.names.iter().map(|name| (&name[..], *id)));
            if group.names.iter().any(|name| wanted.contains(name)) {
                todo.push(*id);
            }
        }
        todo.extend(cell.touched.iter().filter(|id| there.groups.contains_key(id)));
        todo.extend(cell.names.iter().filter_map(|name| owner.get(&name[..])));
        let mut seen = BTreeSet::new();
        while let Some(id) = todo.pop() {
            if let Some(version) = there.groups.get(&id).filter(|_| seen.insert(id)) {
                self.groups.insert(*version);
                let touches = group(index, *version).touches.iter();
                todo.extend(touches.filter_map(|name| owner.get(&name[..])));
            }
        }
        // The kernel alone knows which sections it sets before it runs a cell again.
        self.present_sections(there);
    }

    /// A record with the versions that stay, and their bytes. `None`: it isn't as the form says.
    fn filtered(&self, at: usize, record: &Record) -> Option<Record> {
        let mut said = record.said.clone();
        let mut body = Vec::new();
        let units = said.get_mut("units")?.as_array_mut()?;
        let mut number = 0;
        units.retain(|_| {
            number += 1;
            self.groups.contains(&(at, number - 1))
        });
        for unit in units {
            carry(unit.get_mut("s")?, &record.body, &mut body)?;
        }
        let process = said.get_mut("process")?.as_object_mut()?;
        process.retain(|name, _| self.sections.contains(&(at, name.clone())));
        for stream in process.values_mut() {
            carry(stream, &record.body, &mut body)?;
        }
        if let Some(redo) = said.get_mut("redo").filter(|redo| !redo.is_null()) {
            for cell in redo.get_mut("cells")?.as_array_mut()? {
                let drawn = cell.get_mut("drawn").and_then(Value::as_object_mut);
                for stream in drawn.into_iter().flat_map(|drawn| drawn.values_mut()) {
                    carry(stream, &record.body, &mut body)?;
                }
            }
        }
        Some(Record { said, body })
    }
}

/// Has the bytes of a stream that lies in the record in the new body.
fn carry(stream: &mut Value, from: &[u8], to: &mut Vec<u8>) -> Option<()> {
    let Some(place) = stream.get_mut("in") else {
        return stream.get("c").map(|_| ());
    };
    let (at, length) = match &place.as_array()?[..] {
        [at, length] => (at.as_u64()?, length.as_u64()?),
        _ => return None,
    };
    let (start, end) = (
        usize::try_from(at).ok()?,
        usize::try_from(at.checked_add(length)?).ok()?,
    );
    let bytes = from.get(start..end)?;
    *place = Value::Array(vec![Value::from(to.len()), Value::from(length)]);
    to.extend_from_slice(bytes);
    Some(())
}

/// Whether the makings of variables are as they were recorded: earlier compactions kept them, or they are younger.
fn is_whole(index: &[Index], wanted: &BTreeSet<String>) -> bool {
    let mut made = BTreeSet::new();
    index.iter().all(|record| {
        let names = record.groups.iter().flat_map(|group| &group.names);
        made.extend(names.filter(|name| wanted.contains(*name)).cloned());
        record.compacted.as_ref().is_none_or(|kept| made.is_subset(kept))
    })
}

/// The variables of a group, and the records of the cells that made and touched it, as `rerun._cells` finds them.
fn cells(index: &[Index], lost: &Group) -> (BTreeSet<String>, Vec<usize>) {
    let plain = lost.names.iter().filter(|name| !is_shown(name));
    let mut wanted: BTreeSet<String> = plain.cloned().collect();
    if wanted.is_empty() {
        wanted.extend(lost.names.iter().cloned());
    }
    let (mut owner, mut found) = (BTreeMap::<String, u64>::new(), Vec::new());
    for (at, record) in index.iter().enumerate() {
        let held: BTreeSet<u64> = owner.values().copied().collect();
        if let Some(cell) = &record.cell
            && cell.touched.iter().any(|id| held.contains(id))
        {
            found.push(at);
        }
        owner.retain(|_, id| !record.gone.contains(id));
        for group in &record.groups {
            for name in group.names.iter().filter(|name| wanted.contains(*name)) {
                owner.insert(name.clone(), group.id);
            }
        }
        if held.is_empty() && !owner.is_empty() {
            found = vec![at];
        }
    }
    (wanted, found)
}

/// Whether IPython keeps a cell's displayed value under this name.
fn is_shown(name: &str) -> bool {
    let digits = |rest: &str| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit());
    name.chars().all(|c| c == '_') || name.strip_prefix('_').is_some_and(digits)
}

/// Parts of the last record that concern all: the order of variables, all inputs, the environment, the cells to run
/// again.
struct Together {
    order: Vec<String>,
    inputs: Map<String, Value>,
    env: Option<Value>,
    redo: Option<usize>,
}

impl Together {
    fn of(records: &[Record]) -> Option<Self> {
        let mut there = There::default();
        let mut index: Vec<Index> = Vec::new();
        let mut together = Self {
            order: Vec::new(),
            inputs: Map::new(),
            env: None,
            redo: None,
        };
        for (at, record) in records.iter().enumerate() {
            index.push(read(&record.said)?);
            there.add(at, &index[at]);
            together.add_order(&record.said, &there, &index)?;
            if let Some(inputs) = record.said.get("inputs").and_then(Value::as_object) {
                together.inputs.extend(inputs.clone());
            }
            let given = |key: &str| record.said.get(key).filter(|value| !value.is_null());
            together.env = given("env").cloned().or(together.env);
            together.redo = given("redo").map(|_| at).or(together.redo);
        }
        Some(together)
    }

    fn add_order(&mut self, said: &Map<String, Value>, there: &There, index: &[Index]) -> Option<()> {
        let Some(order) = said.get("order") else {
            return Some(());
        };
        let (kept, names) = match &order.as_array()?[..] {
            [kept, names] => (usize::try_from(kept.as_u64()?).ok()?, strings(names)?),
            _ => return None,
        };
        let versions = there.groups.values();
        let present: BTreeSet<&String> = versions.flat_map(|v| &group(index, *v).names).collect();
        self.order.retain(|name| present.contains(name));
        self.order.truncate(kept);
        self.order.extend(names);
        Some(())
    }

    fn put(&self, record: &mut Record, at: usize, last: usize) -> Option<()> {
        let said = &mut record.said;
        said.insert("inputs".to_owned(), Value::Object(Map::new()));
        said.insert("env".to_owned(), Value::Null);
        said.remove("order");
        if self.redo != Some(at) && said.contains_key("redo") {
            said.insert("redo".to_owned(), Value::Null);
        }
        if at == last {
            let names = self.order.iter().cloned().map(Value::String).collect();
            let order = vec![Value::from(0), Value::Array(names)];
            said.insert("order".to_owned(), Value::Array(order));
            said.insert("inputs".to_owned(), Value::Object(self.inputs.clone()));
            said.insert("env".to_owned(), self.env.clone().unwrap_or(Value::Null));
        }
        Some(())
    }
}

fn read(said: &Map<String, Value>) -> Option<Index> {
    let groups = said.get("units")?.as_array()?.iter();
    let cell = match said.get("cell") {
        None | Some(Value::Null) => None,
        Some(cell) => Some(Cell {
            touched: numbers(cell.get("touched")?)?,
            names: strings(cell.get("names")?)?,
        }),
    };
    let compacted = match said.get("compacted") {
        None => None,
        Some(names) => Some(strings(names)?.into_iter().collect()),
    };
    Some(Index {
        full: said.get("full").and_then(Value::as_bool).unwrap_or(false),
        groups: groups.map(read_group).collect::<Option<_>>()?,
        gone: numbers(said.get("gone")?)?,
        cell,
        sections: said.get("process")?.as_object()?.keys().cloned().collect(),
        compacted,
    })
}

fn read_group(said: &Value) -> Option<Group> {
    let members = strings(said.get("m")?)?;
    let names = members.iter().filter_map(|m| m.strip_prefix("n:"));
    Some(Group {
        id: said.get("u")?.as_u64()?,
        names: names.map(str::to_owned).collect(),
        touches: strings(said.get("t")?)?,
        has_placeholder: !said.get("gone")?.as_array()?.is_empty(),
    })
}

fn strings(value: &Value) -> Option<Vec<String>> {
    let items = value.as_array()?.iter();
    items.map(|item| item.as_str().map(str::to_owned)).collect()
}

fn numbers(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A group with a stream of a single byte: `id`, variables, and the presence of a placeholder.
    fn unit(id: u64, names: &[&str], lost: bool) -> Value {
        let members: Vec<String> = names.iter().map(|n| format!("n:{n}")).collect();
        let gone = if lost {
            json!([["a thread", "why"]])
        } else {
            json!([])
        };
        json!({"u": id, "m": members, "t": [], "gone": gone, "dig": ""})
    }

    /// A record of a cell that touched groups and made others, each with its byte: 10 times the record's number plus
    /// its own.
    fn record(number: u8, touched: &[u64], units: &[Value]) -> Record {
        let mut body = vec![b'x'];
        let placed = units.iter().zip(0_u8..).map(|(unit, i)| {
            let mut unit = unit.clone();
            unit["s"] = json!({"in": [body.len(), 1]});
            body.push(10 * number + i);
            unit
        });
        let units: Vec<Value> = placed.collect();
        let said = json!({
            "units": units, "gone": [], "process": {"random": {"in": [0, 1]}}, "inputs": {number.to_string(): "source"},
            "env": {"python": number}, "cell": {"seq": number, "touched": touched, "names": [], "source": "source"},
            "order": [0, ["a", "b"]],
        });
        Record {
            said: said.as_object().unwrap().clone(),
            body,
        }
    }

    /// The bytes of the groups that stay, by record.
    fn bytes(records: &[Record]) -> Vec<Vec<u8>> {
        let of = |record: &Record| {
            let units = record.said["units"].as_array().unwrap().iter();
            let at = |unit: &Value| record.body[unit["s"]["in"][0].as_u64().unwrap() as usize];
            units.map(at).collect()
        };
        records.iter().map(of).collect()
    }

    #[test]
    fn replaced_versions_go_and_the_rest_is_where_it_says() {
        let records = [
            record(1, &[], &[unit(1, &["a"], false), unit(2, &["b"], false)]),
            record(2, &[1], &[unit(1, &["a"], false)]),
            record(3, &[1], &[unit(1, &["a"], false)]),
        ];
        let out = compact(&records).unwrap();
        assert_eq!(bytes(&out), [vec![11], vec![], vec![30]]);
        // One section, in the last record.
        let bodies: Vec<usize> = out.iter().map(|r| r.body.len()).collect();
        assert_eq!(bodies, [1, 0, 2]);
        let cells: Vec<&Value> = out.iter().map(|r| &r.said["cell"]["seq"]).collect();
        assert_eq!(cells, [1, 2, 3]);
        let last = &out[2].said;
        assert_eq!(
            last["inputs"],
            json!({"1": "source", "2": "source", "3": "source"})
        );
        assert_eq!(
            (&last["env"], &last["order"]),
            (&json!({"python": 3}), &json!([0, ["a", "b"]]))
        );
        assert_eq!(
            (&out[0].said["env"], out[0].said.get("order")),
            (&Value::Null, None)
        );
        assert_eq!(compact(&out).unwrap(), out, "there is nothing left to leave out");
    }

    #[test]
    fn a_record_of_everything_replaces_all_before_it() {
        let mut records = [
            record(1, &[], &[unit(1, &["a"], false), unit(2, &["b"], false)]),
            record(2, &[], &[unit(3, &["a"], false)]),
        ];
        records[1].said.insert("full".into(), json!(true));
        assert_eq!(bytes(&compact(&records).unwrap()), [vec![], vec![20]]);
    }

    #[test]
    fn what_a_placeholders_cells_found_stays() {
        let records = [
            record(1, &[], &[unit(1, &["a"], false), unit(2, &["b"], false)]),
            record(2, &[1], &[unit(3, &["g"], true)]),
            record(3, &[2], &[unit(2, &["b"], false)]),
            record(4, &[1], &[unit(1, &["a"], false)]),
        ];
        let out = compact(&records).unwrap();
        // The cell that made `g` found the first `a`, and nothing of `b`.
        assert_eq!(bytes(&out), [vec![10], vec![20], vec![30], vec![40]]);
        assert_eq!(out[3].said["compacted"], json!(["g"]));
        assert_eq!(compact(&out).unwrap(), out);
    }

    #[test]
    fn the_settings_that_a_placeholders_cell_found_stay() {
        let mut records = [
            record(1, &[], &[unit(1, &["a"], false)]),
            record(2, &[1], &[unit(2, &["g"], true)]),
            record(3, &[], &[]),
            record(4, &[], &[]),
        ];
        let sections = [
            &["environ", "paths"][..],
            &["environ"],
            &["environ"],
            &["environ"],
        ];
        for (record, names) in records.iter_mut().zip(sections) {
            let process = names.iter().map(|n| ((*n).to_owned(), json!({"in": [0, 1]})));
            record
                .said
                .insert("process".into(), Value::Object(process.collect()));
        }
        let out = compact(&records).unwrap();
        let kept = |record: &Record| {
            let process = record.said["process"].as_object().unwrap();
            process.keys().cloned().collect()
        };
        let kept: Vec<Vec<String>> = out.iter().map(kept).collect();
        assert_eq!(kept, [vec!["environ", "paths"], vec![], vec![], vec!["environ"]]);
    }

    #[test]
    fn a_making_of_which_nothing_is_missing_is_named() {
        let records = [
            record(1, &[], &[unit(1, &["a"], false)]),
            record(2, &[], &[unit(2, &["b"], false)]),
            record(3, &[2], &[unit(2, &["b"], false)]),
        ];
        assert_eq!(compact(&records).unwrap()[2].said["compacted"], json!(["a"]));
    }

    #[test]
    fn a_making_that_an_earlier_compaction_dropped_is_not_kept_by_a_later_one() {
        let mut records = vec![
            record(1, &[], &[unit(1, &["a"], false)]),
            record(2, &[1], &[unit(1, &["a"], false)]),
        ];
        records = compact(&records).unwrap();
        records.push(record(3, &[1], &[unit(1, &["a"], true)]));
        let out = compact(&records).unwrap();
        assert_eq!(out[1].said["compacted"], json!([]));
        assert_eq!(out[2].said["compacted"], json!([]));
        assert_eq!(bytes(&out), [vec![], vec![], vec![30]]);
    }

    #[test]
    fn a_making_of_too_many_cells_is_not_kept() {
        let mut records = vec![record(0, &[], &[unit(1, &["g"], true)])];
        records.extend((1..=RERUN_MAX as u8).map(|i| record(i % 20, &[1], &[unit(1, &["g"], true)])));
        let out = compact(&records).unwrap();
        assert_eq!(bytes(&out).concat().len(), 1);
    }

    #[test]
    fn the_order_is_that_of_all_records() {
        let mut records = [
            record(1, &[], &[unit(1, &["a"], false), unit(2, &["b"], false)]),
            record(2, &[], &[unit(3, &["c"], false)]),
            record(3, &[1], &[unit(1, &["a"], false)]),
        ];
        records[1].said.insert("order".into(), json!([2, ["c"]]));
        records[2].said.remove("order");
        let out = compact(&records).unwrap();
        assert_eq!(out[2].said["order"], json!([0, ["a", "b", "c"]]));
    }

    #[test]
    fn what_is_not_as_the_form_says_is_refused() {
        let mut records = [record(1, &[], &[unit(1, &["a"], false)])];
        records[0].said["units"][0]["s"] = json!({"in": [1, 7]});
        assert_eq!(compact(&records), Err(Malformed));
        records[0].said["units"][0]["s"] = json!({"n": 7});
        assert_eq!(compact(&records), Err(Malformed));
        records[0].said.remove("units");
        assert_eq!(compact(&records), Err(Malformed));
        assert_eq!(compact(&[]), Ok(Vec::new()));
    }
}
