//! What pages are told of cells, through the front as a whole.

use super::outputs::STREAM_MAX;
use super::*;
use crate::core::{Mark, SeatWaits};
use hop_protocol::jupyter::{Author, Channel};
use hop_protocol::link::Item;

const ME: Bytes = Bytes::from_static(b"me");

/// Everybody is there. What pages are told is kept, and so is what replicas get.
#[derive(Default)]
struct Ear {
    told: Vec<Value>,
    busy: usize,
    sent: Vec<String>,
}

impl Wire for Ear {
    fn reply(&mut self, _: Channel, _: &[u8], _: Message, _: Option<Mark>) -> Result<(), Message> {
        Ok(())
    }

    fn publish(&mut self, message: &Message, _: Option<Mark>) -> bool {
        let envelope = Envelope::parse(message).unwrap();
        let content: Value = serde_json::from_slice(&envelope.content).unwrap();
        match &*envelope.header().unwrap().msg_type {
            "comm_msg" => self.told.push(content["data"]["outputs"].clone()),
            "status" if content["execution_state"] == "busy" => self.busy += 1,
            _ => {}
        }
        true
    }

    fn subscribers(&self) -> usize {
        1
    }

    fn send(&mut self, item: Item) {
        if let Item::Jupyter { message, .. } = item {
            let envelope = Envelope::parse(&message).unwrap();
            self.sent.push(envelope.header().unwrap().msg_type);
        }
    }

    fn done(&mut self, _: u64) {}
}

struct World {
    front: Front,
    kernel: Author,
    ear: Ear,
    /// The number of the replica's last message.
    seq: u64,
    /// What is recorded for the next front.
    records: Vec<u8>,
}

/// A page's client.
struct Client(Author);

fn page(session: &str) -> Client {
    Client(Author::new(b"key", session.into()))
}

impl World {
    fn new() -> Self {
        Self {
            front: Front::new(b"key", "front".into()),
            kernel: Author::new(b"key", "kernel".into()),
            ear: Ear::default(),
            seq: 0,
            records: Vec::new(),
        }
    }

    /// A world in which the front has a successor.
    fn recorded() -> Self {
        let mut world = Self::new();
        world.front.take_up(b"", Time(0));
        world.front.begins_with(Incarnation(1));
        world
    }

    fn records(&mut self) {
        match self.front.records() {
            Some(Records::More(more)) => self.records.extend(more),
            Some(Records::All(all)) => self.records = all,
            None => {}
        }
    }

    /// The front is killed, and another one follows. The replica of that number is there.
    fn follow(&mut self, replica: u32) {
        self.records();
        self.front = Front::new(b"key", "next".into());
        self.front.take_up(&self.records, Time(0));
        self.front.goes_on_with(Incarnation(replica));
        self.front.sanity_check();
    }

    fn asks(&mut self, client: &mut Client, kind: &str, metadata: &Value, content: &Value) -> Envelope {
        let parent = Bytes::from_static(b"{}");
        let asked = client.0.write(kind, &parent, metadata, content, Time(0));
        let message = asked.clone().message();
        self.front
            .request(Channel::Shell, &ME, message, Time(0), &mut self.ear);
        self.front.sanity_check();
        asked
    }

    fn opens(&mut self, client: &mut Client, notebook: &str) {
        let data = json!({"version": 1, "outputs": {"notebook": notebook}});
        let content = json!({"comm_id": "c", "target_name": "gresshopper", "data": data});
        self.asks(client, "comm_open", &json!({}), &content);
    }

    fn says(&mut self, client: &mut Client, word: &Value) -> Vec<Value> {
        let content = json!({"comm_id": "c", "data": {"outputs": word}});
        self.asks(client, "comm_msg", &json!({}), &content);
        self.told()
    }

    /// The cells that a page is told when it asks.
    fn wants(&mut self, client: &mut Client, notebook: &str) -> Vec<Value> {
        let told = self.says(client, &json!({"notebook": notebook, "wanted": true}));
        told.iter().map(|t| t["cell"].clone()).collect()
    }

    /// The same, without the count of messages: each answer that a cell runs is one more.
    fn kept(&mut self, client: &mut Client) -> Vec<Value> {
        let mut cells = self.wants(client, "a.ipynb");
        for cell in &mut cells {
            cell["heard"] = Value::Null;
        }
        cells
    }

    fn runs(&mut self, client: &mut Client, cell: &str, code: &str) -> Envelope {
        let content = json!({"code": code, "silent": false});
        self.asks(client, "execute_request", &json!({"cellId": cell}), &content)
    }

    /// The kernel publishes something for a cell.
    fn shows(&mut self, cell: &Envelope, kind: &str, content: &Value) {
        let message = self
            .kernel
            .publish(kind, &cell.header, &json!({}), content, Time(0));
        self.comes(Channel::Iopub, message);
    }

    fn prints(&mut self, cell: &Envelope, text: &str) {
        self.shows(cell, "stream", &json!({"name": "stdout", "text": text}));
    }

    fn stands(&mut self, cell: &Envelope, state: &str) {
        self.shows(cell, "status", &json!({"execution_state": state}));
    }

    fn replies(&mut self, cell: &Envelope, count: u64) {
        let content = json!({"status": "ok", "execution_count": count});
        let reply = self
            .kernel
            .write("execute_reply", &cell.header, &json!({}), &content, Time(0));
        self.comes(Channel::Shell, reply.message());
    }

    fn ends(&mut self, cell: &Envelope, count: u64) {
        self.replies(cell, count);
        self.stands(cell, "idle");
    }

    fn comes(&mut self, channel: Channel, message: Message) {
        let item = Item::Jupyter {
            channel,
            identity: ME,
            message,
        };
        self.seq += 1;
        self.front.item(self.seq, item, Time(0), &mut self.ear);
        self.front.sanity_check();
        self.records();
    }

    fn told(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.ear.told)
    }
}

fn id(cell: &Envelope) -> String {
    cell.header().unwrap().msg_id
}

fn text(text: &str) -> Value {
    json!({"msg_type": "stream", "content": {"name": "stdout", "text": text}})
}

#[test]
fn a_cell_is_kept_until_a_page_has_shown_it() {
    let (mut world, mut first, mut second) = (World::new(), page("first"), page("second"));
    world.opens(&mut first, "a.ipynb");
    let cell = world.runs(&mut first, "cell-1", "loop()");
    world.stands(&cell, "busy");
    world.prints(&cell, "1\n");
    world.prints(&cell, "2\n");
    world.ends(&cell, 7);
    let kept = world.wants(&mut second, "a.ipynb");
    let reply = json!({"status": "ok", "execution_count": 7});
    let told = json!({
        "id": id(&cell), "cell_id": "cell-1", "code": "loop()", "heard": 4, "dropped": 0,
        "outputs": [text("1\n2\n")], "reply": reply,
    });
    assert_eq!(kept, std::slice::from_ref(&told));
    assert_eq!(world.ear.busy, 1, "the kernel's own: the cell has ended");
    assert_eq!(world.wants(&mut first, "a.ipynb"), [told], "it isn't shown yet");
    let seen = json!({"notebook": "a.ipynb", "seen": [id(&cell)]});
    assert_eq!(world.says(&mut second, &seen), [] as [Value; 0]);
    assert!(world.wants(&mut first, "a.ipynb").is_empty());
    assert_eq!(
        world.ear.sent,
        ["comm_open", "execute_request"],
        "a page's words on outputs are for the front alone"
    );
}

#[test]
fn a_page_that_comes_while_the_cell_runs_hears_of_its_end() {
    let (mut world, mut first, mut second) = (World::new(), page("first"), page("second"));
    world.opens(&mut first, "a.ipynb");
    let (cell, behind) = (
        world.runs(&mut first, "cell-1", "loop()"),
        world.runs(&mut first, "cell-2", "2"),
    );
    world.stands(&cell, "busy");
    world.prints(&cell, "1\n");
    let kept = world.wants(&mut second, "a.ipynb");
    let names: Vec<&Value> = kept.iter().map(|c| &c["cell_id"]).collect();
    assert_eq!(names, ["cell-1", "cell-2"]);
    assert_eq!(
        (&kept[0]["reply"], &kept[1]["outputs"]),
        (&Value::Null, &json!([]))
    );
    assert_eq!(
        world.ear.busy, 2,
        "the page doesn't know yet that the kernel is busy"
    );
    world.prints(&cell, "2\n");
    assert!(world.told().is_empty(), "it hears that itself");
    let seen = json!({"notebook": "a.ipynb", "seen": [id(&cell)]});
    assert_eq!(
        world.says(&mut second, &seen),
        [] as [Value; 0],
        "it has not ended"
    );
    world.replies(&cell, 7);
    assert!(world.told().is_empty(), "more may come");
    world.stands(&cell, "idle");
    let end = |cell, count: u64| {
        let reply = json!({"status": "ok", "execution_count": count});
        json!({"ended": {"id": id(cell), "reply": reply}})
    };
    assert_eq!(world.told(), [end(&cell, 7)]);
    world.stands(&behind, "idle");
    world.replies(&behind, 8);
    assert_eq!(world.told(), [end(&behind, 8)], "in whichever order");
}

#[test]
fn a_page_that_has_shown_a_cell_is_told_the_others_alone() {
    let (mut world, mut me) = (World::new(), page("me"));
    world.opens(&mut me, "a.ipynb");
    let (ended, runs) = (
        world.runs(&mut me, "cell-1", "1"),
        world.runs(&mut me, "cell-2", "2"),
    );
    world.ends(&ended, 1);
    let wanted = json!({"notebook": "a.ipynb", "wanted": true, "shown": [id(&ended), id(&runs)]});
    let told = world.says(&mut me, &wanted);
    let told: Vec<&Value> = told.iter().map(|t| &t["cell"]["id"]).collect();
    assert_eq!(
        told,
        [id(&runs).as_str()],
        "what runs has not been shown to its end"
    );
    assert_eq!(
        world.wants(&mut page("next"), "a.ipynb").len(),
        2,
        "it isn't in the file"
    );
}

#[test]
fn a_page_that_follows_a_cell_goes_on_with_its_next_execution() {
    let (mut world, mut me) = (World::new(), page("me"));
    world.opens(&mut me, "a.ipynb");
    world.runs(&mut me, "cell-1", "1");
    let (mut second, mut third) = (page("second"), page("third"));
    world.wants(&mut second, "a.ipynb");
    world.wants(&mut third, "a.ipynb");
    let again = world.runs(&mut second, "cell-1", "2");
    let told = world.told();
    let told: Vec<&Value> = told.iter().map(|t| &t["cell"]["code"]).collect();
    assert_eq!(told, ["2"], "the third page; the second has asked for it itself");
    world.ends(&again, 2);
    let told = world.told();
    let told: Vec<&Value> = told.iter().map(|t| &t["ended"]["id"]).collect();
    assert_eq!(told, [id(&again).as_str()]);
}

#[test]
fn the_text_on_a_seats_wait_is_an_output_like_others() {
    let (mut world, mut me) = (World::new(), page("me"));
    // Its announcement went with its connection.
    world.says(&mut me, &json!({"notebook": "a.ipynb"}));
    let seat = SeatWaits {
        reason: "Resources".into(),
        start: None,
    };
    world.front.seat_waits(seat, Time(0), &mut world.ear);
    world.runs(&mut me, "cell-1", "x");
    let kept = world.wants(&mut me, "a.ipynb");
    assert_eq!(kept[0]["outputs"][0]["msg_type"], "display_data");
    world.front.replica_is_there(Time(0), &mut world.ear);
    let kept = world.wants(&mut me, "a.ipynb");
    // The text, its end, and three times busy: as the cell came, as the page asked, and as the seat was there.
    assert_eq!((&kept[0]["outputs"], &kept[0]["heard"]), (&json!([]), &json!(5)));
}

#[test]
fn outputs_are_those_of_an_output_area() {
    let (mut world, mut me) = (World::new(), page("me"));
    world.opens(&mut me, "a.ipynb");
    let cell = world.runs(&mut me, "cell-1", "x");
    let outputs = |world: &mut World, me: &mut Client| {
        let kept = world.wants(me, "a.ipynb");
        kept[0]["outputs"].as_array().unwrap().clone()
    };
    let display = |text: &str| json!({"data": {"text/plain": text}, "transient": {"display_id": "d"}});
    let as_output = |kind: &str, content: &Value| json!({"msg_type": kind, "content": content});
    let (one, two, three) = (display("1"), display("2"), display("3"));
    world.prints(&cell, "a");
    world.shows(&cell, "stream", &json!({"name": "stderr", "text": "b"}));
    world.shows(&cell, "display_data", &one);
    world.shows(&cell, "update_display_data", &two);
    world.shows(&cell, "update_display_data", &three);
    let error = json!({"ename": "E", "evalue": "", "traceback": []});
    world.shows(&cell, "error", &error);
    let update = as_output("update_display_data", &three);
    assert_eq!(
        outputs(&mut world, &mut me),
        [
            text("a"),
            as_output("stream", &json!({"name": "stderr", "text": "b"})),
            as_output("display_data", &one),
            as_output("error", &error),
            update.clone(),
        ]
    );
    world.shows(&cell, "clear_output", &json!({"wait": true}));
    let pending = as_output("clear_output", &json!({"wait": true}));
    assert_eq!(outputs(&mut world, &mut me).last(), Some(&pending));
    world.prints(&cell, "c");
    assert_eq!(outputs(&mut world, &mut me), [text("c"), update.clone()]);
    world.shows(&cell, "clear_output", &json!({"wait": false}));
    assert_eq!(
        outputs(&mut world, &mut me),
        [update],
        "it may be of another cell's"
    );
    world.shows(&cell, "display_data", &one);
    assert_eq!(
        outputs(&mut world, &mut me),
        [as_output("display_data", &one)],
        "it is newer"
    );
}

#[test]
fn beyond_the_bound_the_oldest_outputs_go_and_are_counted() {
    let (mut world, mut me) = (World::new(), page("me"));
    world.opens(&mut me, "a.ipynb");
    let first = world.runs(&mut me, "cell-1", "x");
    for _ in 0..3 {
        world.prints(&first, &"x".repeat(STREAM_MAX / 2));
    }
    let second = world.runs(&mut me, "cell-2", "x");
    let picture = |size: usize| json!({"data": {"image/png": "x".repeat(size)}, "metadata": {}});
    for size in [KEEP / 2, KEEP / 2, KEEP / 2, KEEP] {
        world.shows(&second, "display_data", &picture(size));
    }
    let kept = world.wants(&mut me, "a.ipynb");
    let dropped = |at: usize| {
        let outputs = kept[at]["outputs"].as_array().unwrap().len();
        (kept[at]["dropped"].as_u64().unwrap(), outputs)
    };
    assert_eq!(
        (dropped(0), dropped(1)),
        ((3, 0), (3, 1)),
        "a huge one costs no others"
    );
    for _ in 0..=CELLS_MAX {
        world.runs(&mut me, &uuid::Uuid::new_v4().to_string(), "");
    }
    assert_eq!(world.wants(&mut me, "a.ipynb").len(), CELLS_MAX);
    let huge = world.runs(&mut me, "cell-3", &"x".repeat(KEEP + 1));
    world.prints(&huge, "too much");
    assert!(world.wants(&mut me, "a.ipynb").is_empty());
}

#[test]
fn a_cell_that_runs_again_has_its_last_outputs_alone() {
    let (mut world, mut me) = (World::new(), page("me"));
    world.opens(&mut me, "a.ipynb");
    let first = world.runs(&mut me, "cell-1", "x");
    world.prints(&first, "old");
    let second = world.runs(&mut me, "cell-1", "x");
    world.prints(&first, "older than the second one's");
    world.prints(&second, "new");
    let kept = world.wants(&mut me, "a.ipynb");
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0]["outputs"], json!([text("new")]));
}

#[test]
fn other_clients_and_other_notebooks_have_no_part_in_it() {
    let (mut world, mut me) = (World::new(), page("me"));
    world.opens(&mut me, "a.ipynb");
    let mut console = page("console");
    world.runs(&mut console, "cell-1", "x");
    let content = json!({"code": "x"});
    world.asks(&mut me, "execute_request", &json!({}), &content);
    let silent = json!({"code": "x", "silent": true});
    world.asks(&mut me, "execute_request", &json!({"cellId": "cell-1"}), &silent);
    assert!(world.wants(&mut me, "a.ipynb").is_empty());
    world.runs(&mut me, "cell-1", "x");
    assert!(world.wants(&mut page("other"), "copy.ipynb").is_empty());
    let long = "x".repeat(PATH_MAX + 1);
    assert!(world.wants(&mut page("hostile"), &long).is_empty());
    // The notebook gets another name.
    world.says(&mut me, &json!({"notebook": "b.ipynb"}));
    assert_eq!(world.wants(&mut page("next"), "b.ipynb").len(), 1);
    // A widget's messages are the kernel's.
    let widget = json!({"comm_id": "w", "data": {"outputs": [1]}});
    world.asks(&mut me, "comm_msg", &json!({}), &widget);
    assert_eq!(world.ear.sent.last().unwrap(), "comm_msg");
}

#[test]
fn a_front_after_a_front_learns_its_pages_by_their_next_word() {
    let (mut world, mut me) = (World::new(), page("me"));
    world.says(&mut me, &json!({"notebook": "a.ipynb", "seen": ["unheard of"]}));
    world.runs(&mut me, "cell-1", "x");
    assert_eq!(world.wants(&mut me, "a.ipynb").len(), 1);
}

#[test]
fn a_page_hears_that_the_kernel_has_died() {
    let (mut world, mut me) = (World::new(), page("me"));
    world.opens(&mut me, "a.ipynb");
    let cell = world.runs(&mut me, "cell-1", "x");
    world.runs(&mut me, "cell-2", "x");
    world.stands(&cell, "busy");
    assert_eq!(world.wants(&mut page("next"), "a.ipynb").len(), 2);
    world.front.die("no memory".into(), Time(0), &mut world.ear);
    world.front.sanity_check();
    let told = world.told();
    let ends: Vec<&Value> = told.iter().map(|t| &t["ended"]["reply"]["status"]).collect();
    assert_eq!(ends, ["error", "aborted"]);
}

#[test]
fn a_killed_fronts_successor_goes_on_with_what_was_kept() {
    let mut world = World::recorded();
    let (mut first, mut second) = (page("one"), page("two"));
    world.opens(&mut first, "a.ipynb");
    let cell = world.runs(&mut first, "c", "code");
    let behind = world.runs(&mut first, "d", "more");
    world.stands(&cell, "busy");
    world.prints(&cell, "one \u{1f600} \"quoted\"\n");
    let kept = world.kept(&mut second);
    for _ in 0..2 {
        world.follow(1);
        assert_eq!(world.kept(&mut second), kept);
    }
    assert!(world.ear.busy >= 3, "the next front knows that the cell runs");
    // The killed front had taken the line, and not noted it as delivered.
    world.seq -= 1;
    world.prints(&cell, "one \u{1f600} \"quoted\"\n");
    assert_eq!(world.kept(&mut second), kept, "the line comes again");
    world.prints(&cell, "two\n");
    world.follow(1);
    world.told();
    world.ends(&cell, 1);
    let told = world.told();
    assert_eq!(told.len(), 1, "the page that asked hears of the end: {told:?}");
    let cells = world.wants(&mut second, "a.ipynb");
    assert_eq!(
        cells[0]["outputs"],
        json!([text("one \u{1f600} \"quoted\"\ntwo\n")])
    );
    assert_eq!(cells[0]["reply"]["execution_count"], 1);
    // Another replica numbers its messages anew.
    world.follow(2);
    world.seq = 0;
    world.ends(&behind, 2);
    world.told();
    let cells = world.wants(&mut second, "a.ipynb");
    assert_eq!(cells[1]["reply"]["execution_count"], 2);
    // The first page is known, and what it has seen is forgotten.
    let later = world.runs(&mut first, "e", "later");
    world.says(
        &mut first,
        &json!({"notebook": "a.ipynb", "seen": [id(&cell), id(&behind)]}),
    );
    world.follow(2);
    let cells = world.wants(&mut second, "a.ipynb");
    assert_eq!(
        cells.iter().map(|c| &c["id"]).collect::<Vec<_>>(),
        [&json!(id(&later))]
    );
}

#[test]
fn a_process_after_a_killed_one_of_the_same_replica_numbers_its_messages_anew() {
    let (mut world, mut me) = (World::recorded(), page("me"));
    world.opens(&mut me, "a.ipynb");
    let first = world.runs(&mut me, "c", "code");
    for n in 0..9 {
        world.prints(&first, &format!("{n}\n"));
    }
    let second = world.runs(&mut me, "d", "more");
    world.front.begins_with(Incarnation(1));
    world.seq = 0;
    world.prints(&second, "two\n");
    world.ends(&second, 2);
    let kept = world.kept(&mut page("next"));
    assert_eq!(kept.len(), 2);
    assert_eq!(kept[1]["outputs"], json!([text("two\n")]));
    assert_eq!(kept[1]["reply"]["execution_count"], 2);
    // The next front counts the same.
    world.follow(1);
    assert_eq!(world.kept(&mut page("next")), kept);
}

#[test]
fn records_stay_as_small_as_what_is_kept() {
    let mut world = World::recorded();
    let mut one = page("one");
    world.opens(&mut one, "a.ipynb");
    let cell = world.runs(&mut one, "c", "code");
    let line = "x".repeat(64 << 10);
    for n in 0..400 {
        world.prints(&cell, &format!("{n}{line}\n"));
        assert!(world.records.len() < 2 * KEEP + (2 << 20), "{n}");
    }
    let kept = world.wants(&mut one, "a.ipynb");
    world.follow(1);
    assert_eq!(world.wants(&mut one, "a.ipynb"), kept);
    // A write that was broken off.
    world.records.extend(b"{\"Came\":{\"ce");
    world.follow(1);
    assert_eq!(world.wants(&mut one, "a.ipynb"), kept);
}
