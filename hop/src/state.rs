//! `hop state`: save, look at, compare, restore and export the state of a notebook. Needs neither Slurm nor `hopd`.
//!
//! A running kernel is asked at its process's door (`docs/agent-wire.md`). A saved state is read here, without running
//! any of its code; a state in an object store is carried to and from a folder here ([`crate::state_remote`]).

use crate::asked::{self, Kernel};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::size;
use crate::state_remote::{self, Store};
use crate::values::SECONDS;
use clap::{Args as ClapArgs, Subcommand};
use hop_blobs::local::{Collected, Local};
use hop_blobs::places::Places;
use hop_door::{AskError, News};
use hop_protocol::content::{self, Stores};
use hop_protocol::file::data_dir_by;
use hop_remote::address::{self, Address, AddressError};
use hop_remote::send::Sent;
use hop_state::form::{self, Difference, Saved, Snapshot};
use hop_state::garbage;
use hop_state::hold::Hold;
use hop_state::log::Key;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "Examples:
  hop state show                     the cost of each variable, and what can't be saved
  hop state save --to work           save the kernel's state under the name `work`
  hop state save train.ipynb         save this notebook's kernel, if several run
  hop state show work                the cost of each variable in it
  hop state restore work             restore it into the kernel
  hop state diff monday friday       what differs between two saved states
  hop state export work out/         as npy, parquet and pickle files
  hop state save --to s3://bucket/me/work      save it, and send what isn't there yet
  hop state restore s3://bucket/me/work        fetch it, prove it, restore it
  hop state copy work s3://bucket/me/work      send a state that was saved here; or the other way
  hop state gc s3://bucket/me                  remove what no state there refers to

A KERNEL is a notebook's name, a kernel id (or its beginning) or a connection file. Kernels of
Gresshopper are reached on any node. Without KERNEL the only kernel is meant. In a notebook write `%hop state save` for the notebook's
own kernel, not `!hop`. A STATE is a name, a folder, s3://BUCKET/PREFIX/NAME or
file:///FOLDER/NAME. A kernel that isn't Gresshopper's first runs the cell %load_ext gresshopper, and
its environment needs the package cloudpickle.

For S3, keys, region and endpoint are those of the AWS tools: AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY or AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL (http:// only with
AWS_ALLOW_HTTP=true).

Exit status: 0 done; 1 failed or refused; 2 wrong usage; 3 the object store is away or full: what
was to be sent is saved here, and run again it goes on.";

/// Save, compare, restore and export the state of a notebook
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    /// Folder of content, instead of GRESSHOPPER_STORE, the site's (seat.store) or ~/.local/share/gresshopper/store
    #[arg(long, global = true, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Place of named states, instead of ~/.local/share/gresshopper/states: s3://BUCKET/PREFIX
    #[arg(long, global = true, value_name = "URL", env = "GRESSHOPPER_REMOTE")]
    remote: Option<String>,
    /// Folder of the Python package; default: beside this installation
    #[arg(long, global = true, value_name = "DIR", env = "GRESSHOPPER_PYTHON")]
    python_path: Option<PathBuf>,
    /// How long to wait for a kernel that is busy, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(SECONDS))]
    timeout: u64,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Save a kernel's state
    Save {
        kernel: Option<String>,
        /// Name, folder or address; the kernel's id if not given
        #[arg(long, value_name = "STATE")]
        to: Option<String>,
        /// Don't wait until it survives a crash of the machine
        #[arg(long)]
        fast: bool,
        /// Store everything, even if its cells are faster to run again
        #[arg(long)]
        whole: bool,
    },
    /// Show the size of each variable of a kernel or of a saved state
    Show { what: Option<String> },
    /// Show the differences between two saved states
    Diff { before: String, after: String },
    /// Restore a saved state into a kernel
    Restore {
        state: String,
        kernel: Option<String>,
        /// Even if packages differ
        #[arg(long)]
        anyway: bool,
        /// Read everything at once, instead of large variables when they are needed
        #[arg(long)]
        wait: bool,
    },
    /// Write a saved state as files that other tools read
    Export {
        state: String,
        to: PathBuf,
        /// The Python whose packages can read it
        #[arg(long, default_value = "python3")]
        python: PathBuf,
    },
    /// Send a saved state to an object store, or fetch one
    Copy { from: String, to: String },
    /// Remove content that no saved state refers to
    Gc {
        /// An object store (s3://BUCKET/PREFIX), instead of what is here
        at: Option<String>,
        /// Least age of removed content; younger content may belong to an unfinished capture
        #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
        age: u64,
    },
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let place = Place::of(args, context)?;
    match &args.verb {
        Verb::Save {
            kernel,
            to,
            fast,
            whole,
        } => {
            let how = json!({"durable": !fast, "whole": whole});
            save(args, &place, kernel.as_deref(), to.as_deref(), how, context)
        }
        Verb::Show { what } => show(args, &place, what.as_deref(), context),
        Verb::Diff { before, after } => diff(args, &place, before, after, context),
        Verb::Restore {
            state,
            kernel,
            anyway,
            wait,
        } => {
            let how = json!({"anyway": anyway, "wait": wait});
            restore(args, &place, state, kernel.as_deref(), how, context)
        }
        Verb::Export { state, to, python } => export(args, &place, state, to, python, context),
        Verb::Copy { from, to } => copy(args, &place, from, to, context),
        Verb::Gc { at, age } => {
            let age = Duration::from_secs(*age);
            match at {
                Some(at) => collect_there(args, &place, at, age, context),
                None => collect(args, &place, age, context),
            }
        }
    }
}

/// Where a state lies.
enum Where {
    Here(PathBuf),
    There(Address),
}

/// Where this user's things lie.
struct Place {
    states: PathBuf,
    /// Where names are looked for instead.
    remote: Option<address::Place>,
    stores: Stores,
    runtime: PathBuf,
    key: PathBuf,
    uid: u32,
}

impl Place {
    fn of(args: &Args, context: &mut Context<'_>) -> Result<Self, Failure> {
        let home = (context.env)("HOME").ok_or_else(|| Failure::Failed("HOME isn't set".to_owned()))?;
        let home = Path::new(&home);
        let data = data_dir_by(context.env).expect("there is a home");
        let config = (context.env)("XDG_CONFIG_HOME").map(PathBuf::from);
        let uid = rustix::process::geteuid().as_raw();
        let of_site = || {
            context
                .config
                .as_ref()?
                .seat
                .store_of(&(context.user)(&uid.to_string())?)
        };
        let user = match &args.store {
            Some(store) => Some(std::path::absolute(store)?),
            None => content::by_user((context.env)(content::VARIABLE)).or_else(|relative| {
                writeln!(context.err, "hop: {relative}")?;
                Ok::<_, Failure>(None)
            })?,
        };
        let (stores, _) =
            content::choose(user, of_site(), Some(data.clone())).expect("the data folder is one");
        Ok(Self {
            states: data.join("states"),
            remote: args
                .remote
                .as_deref()
                .filter(|url| !url.is_empty())
                .map(usable)
                .transpose()?,
            stores,
            runtime: asked::runtime(context)?,
            key: form::key_path(config.as_deref(), home),
            uid,
        })
    }

    /// A state by name, or by folder.
    fn state(&self, name: &str) -> Result<PathBuf, Failure> {
        if matches!(name.trim(), "" | "." | "..") {
            return Err(Failure::Usage(format!(
                "{name:?} is no state's name: give a name such as `work`, or a folder with a slash (`./work`)"
            )));
        }
        if name.contains('/') || Path::new(name).join("head").exists() {
            Ok(std::path::absolute(name).unwrap_or_else(|_| PathBuf::from(name)))
        } else {
            Ok(self.states.join(name))
        }
    }

    /// A state by name, folder or address.
    fn find(&self, name: &str) -> Result<Where, Failure> {
        if name.contains("://") {
            return usable(name).map(Where::There);
        }
        let folder = name.contains('/') || Path::new(name).join("head").exists();
        match &self.remote {
            Some(place) if !folder => Ok(Where::There(place.state(usable(name)?))),
            _ => self.state(name).map(Where::Here),
        }
    }

    /// Whether what is to be shown is a state, rather than a kernel.
    fn is_state(&self, name: &str, context: &Context<'_>) -> bool {
        match self.find(name) {
            Ok(Where::Here(folder)) => folder.join("head").exists(),
            Ok(Where::There(_)) => {
                name.contains("://") || asked::find(Some(name), &self.runtime, context).is_err()
            }
            Err(_) => name.contains("://"),
        }
    }

    fn owner_key(&self) -> Result<[u8; 32], Failure> {
        form::owner_key(&self.key, self.uid).map_err(|e| Failure::of(&e))
    }

    fn load(&self, folder: &Path) -> Result<Saved, Failure> {
        form::load(folder, &self.owner_key()?, self.uid).map_err(|e| Failure::of(&e))
    }

    /// What a state holds, wherever it lies.
    fn read(&self, name: &str) -> Result<Snapshot, Failure> {
        let saved = match self.find(name)? {
            Where::Here(folder) => self.load(&folder)?,
            Where::There(address) => Store::of(&address)?.read(&address, &self.owner_key()?)?,
        };
        Ok(saved.snapshot)
    }

    /// The store that takes content, checked as a kernel checks its own.
    fn store(&self) -> Result<&Path, Failure> {
        let store = &self.stores.store;
        content::prepare(store).map_err(|e| Failure::of(&e))?;
        Ok(store)
    }

    /// The store's chunks.
    fn local(&self) -> Result<Arc<Local>, Failure> {
        Ok(Arc::new(Local::at(&self.store()?.join("chunks"))))
    }

    /// The stores, as a kernel is told of them.
    fn asked(&self) -> Value {
        json!(self.stores)
    }

    /// Keeps collections from content until the state is here that names it.
    fn hold(&self) -> Result<Option<Hold>, Failure> {
        // Where the file system has no locks, the content's age protects it.
        Ok(Hold::begin(self.store()?, Duration::ZERO).ok())
    }

    /// Registers a folder with a state in the store, so that later collections keep the state's content.
    fn keep_content_of(&self, folder: &Path) -> Result<(), Failure> {
        // The named states' place: once for all of them.
        let place = if folder.starts_with(&self.states) {
            &self.states
        } else {
            folder
        };
        Ok(garbage::register(self.store()?, place)?)
    }

    /// Local folder of a state that will go to an object store: a kernel saves into folders only.
    fn outgoing(&self, address: &Address) -> PathBuf {
        let mark = blake3::hash(address.to_string().as_bytes()).to_hex();
        self.states.join(format!("{}@{}", address.name, &mark[..8]))
    }

    /// Brings a state here with its content; returns the state's folder. A local state not yet sent is never replaced.
    fn fetch(&self, address: &Address, context: &mut Context<'_>) -> Result<PathBuf, Failure> {
        let store = Store::of(address)?;
        let _held = self.hold()?;
        let saved = store.read(address, &self.owner_key()?)?;
        let done = store.fetch(&saved, &self.local()?, context)?;
        writeln!(
            context.err,
            "fetched {} ({} of {} chunks) from {address}",
            size(done.bytes),
            done.chunks,
            saved.snapshot.chunks.len(),
        )?;
        let outgoing = self.outgoing(address);
        if self
            .load(&outgoing)
            .is_ok_and(|here| here.head.mac == saved.head.mac)
        {
            return Ok(outgoing);
        }
        let name = outgoing.file_name().unwrap_or_default().to_string_lossy();
        let folder = self.states.join(format!("{name}-fetched"));
        state_remote::install(&saved, &folder)?;
        self.keep_content_of(&folder)?;
        Ok(folder)
    }

    /// Sends a state that lies here.
    fn send(&self, folder: &Path, address: &Address, context: &mut Context<'_>) -> Result<Sent, Failure> {
        let key = self.owner_key()?;
        let saved = self.load(folder)?;
        let from = Arc::new(Places::at(self.stores.all().cloned()));
        let sent = Store::of(address)?.send(address, &saved, &key, &from, context)?;
        writeln!(
            context.err,
            "sent {} ({} of {} chunks) to {address}",
            size(sent.bytes),
            sent.chunks,
            sent.of
        )?;
        Ok(sent)
    }
}

/// Parses an address or a part of one; an error is wrong usage.
fn usable<T: FromStr<Err = AddressError>>(text: &str) -> Result<T, Failure> {
    text.parse()
        .map_err(|e: AddressError| Failure::Usage(e.to_string()))
}

/// Has a kernel carry out an operation.
fn ask(
    args: &Args,
    context: &mut Context<'_>,
    kernel: &Kernel,
    op: &str,
    body: Value,
) -> Result<Value, Failure> {
    let python = python_path(args).ok();
    let mut door = asked::door(kernel, python.as_deref(), context)?;
    let limit = Duration::from_secs(args.timeout);
    let (mut begun, mut told) = (false, String::new());
    let mut hear = |news: News<'_>| {
        let text = match news {
            // The first word: no cell runs any more.
            News::Progress("") => {
                begun = true;
                return;
            }
            News::Progress(text) => text,
            News::Silence if told.is_empty() => "waiting for the kernel, which is busy or saving",
            News::Silence => return,
        };
        if text != told {
            // The answer counts, whatever becomes of this.
            let _ = writeln!(context.err, "hop: {text}");
            told = text.to_owned();
        }
    };
    let said = door.ask(op, body, limit, &mut hear);
    said.map_err(|error| failed(&error, limit, begun))
}

/// `begun`: the kernel has begun to do what it was asked.
fn failed(error: &AskError, limit: Duration, begun: bool) -> Failure {
    let seconds = limit.as_secs();
    Failure::Failed(match error {
        AskError::TimedOut(_) if begun => {
            format!("the kernel hasn't finished within {seconds} s, and goes on")
        }
        AskError::TimedOut(_) => format!(
            "the kernel didn't come to it within {seconds} s, and it won't be done: its variables are read between cells, and \
             a cell runs"
        ),
        AskError::Broken(_) => "the kernel ended, or closed the connection".to_owned(),
        AskError::Refused { kind, message } if kind == "unknown" => {
            format!("{message} in this kernel, which is of another release: restart it")
        }
        AskError::Refused { message, .. } => message.clone(),
        other => return Failure::of(other),
    })
}

/// Folder of the Python package: named by the user, beside the installation, or in this source tree.
fn python_path(args: &Args) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.python_path {
        return Ok(path.clone());
    }
    let exe = std::env::current_exe()?;
    exe.ancestors()
        .flat_map(|up| [up.join("python"), up.join("kernel/python")])
        .find(|p| p.join("gresshopper/state/agent.py").is_file())
        .ok_or_else(|| {
            Failure::Failed("the Python package isn't beside this program: give --python-path".to_owned())
        })
}

fn save(
    args: &Args,
    place: &Place,
    kernel: Option<&str>,
    to: Option<&str>,
    how: Value,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let kernel = asked::find(kernel, &place.runtime, context)?;
    let to = place.find(to.unwrap_or(&kernel.id))?;
    let state = match &to {
        Where::Here(folder) => folder.clone(),
        Where::There(address) => place.outgoing(address),
    };
    let body = with(how, with(json!({"to": state}), place.asked()));
    let done = ask(args, context, &kernel, "state.save", body)?;
    if !args.json {
        tell_saved(&kernel, &done, &state, context)?;
    }
    let mut sent = json!({});
    if let Where::There(address) = &to {
        let kept = format!(
            "the state is saved here: `hop state copy {} {address}` sends it",
            state.file_name().unwrap_or_default().to_string_lossy(),
        );
        let done = place.send(&state, address, context);
        let done = done.map_err(|e| state_remote::adding(e, &kept))?;
        sent = json!({"sent_to": address.to_string(), "sent_bytes": done.bytes, "sent_chunks": done.chunks});
    }
    if args.json {
        writeln!(context.out, "{}", with(done, sent))?;
    }
    Ok(())
}

/// Reports a kernel's saved and unsaved variables.
fn tell_saved(kernel: &Kernel, done: &Value, state: &Path, context: &mut Context<'_>) -> Result<(), Failure> {
    let groups = match done["units"].as_u64().unwrap_or(0) {
        1 => "1 group of variables".to_owned(),
        n => format!("{n} groups of variables"),
    };
    let bytes = done["log_bytes"].as_u64().unwrap_or(0) + done["chunk_bytes"].as_u64().unwrap_or(0);
    writeln!(
        context.err,
        "saved {}: {groups} in {:.2} s, {} new, to {}",
        kernel.title(),
        done["seconds"].as_f64().unwrap_or(0.0),
        size(bytes),
        state.display()
    )?;
    for (names, bytes) in done["left"].as_object().into_iter().flatten() {
        writeln!(
            context.err,
            "hop: {names} isn't stored ({}): a restore runs its cells again, which was tried",
            size(bytes.as_u64().unwrap_or(0))
        )?;
    }
    for names in done["rebuilt"].as_object().into_iter().flatten().map(|(n, _)| n) {
        writeln!(
            context.err,
            "hop: {names} can't be stored; a restore runs its cells again"
        )?;
    }
    for (name, why) in done["lost"].as_object().into_iter().flatten() {
        writeln!(
            context.err,
            "hop: {name} can't be saved: {}",
            why.as_str().unwrap_or("")
        )?;
    }
    for (names, notes) in done["notes"].as_object().into_iter().flatten() {
        for note in notes.as_array().into_iter().flatten() {
            writeln!(context.err, "hop: {names}: {}", note.as_str().unwrap_or(""))?;
        }
    }
    Ok(())
}

/// Both objects' keys.
fn with(mut some: Value, more: Value) -> Value {
    if let (Some(into), Value::Object(more)) = (some.as_object_mut(), more) {
        into.extend(more);
    }
    some
}

fn show(args: &Args, place: &Place, what: Option<&str>, context: &mut Context<'_>) -> Result<(), Failure> {
    let rows = match what.filter(|w| place.is_state(w, context)) {
        Some(name) => shown(&place.read(name)?),
        None => {
            let kernel = asked::find(what, &place.runtime, context)?;
            let body = place.asked();
            ask(args, context, &kernel, "state.show", body)?["groups"].take()
        }
    };
    if args.json {
        writeln!(context.out, "{rows}")?;
        return Ok(());
    }
    writeln!(context.out, "{:>10} {:>9}  VARIABLES", "SIZE", "SECONDS")?;
    for row in rows.as_array().into_iter().flatten() {
        let names: Vec<&str> = row["names"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let lost = row["lost"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|l| format!("  LOST {}: {}", text(&l[0]), text(&l[1])));
        let notes = row["notes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|n| format!("  NOTE {}", text(n)));
        let left = row["left"]
            .as_bool()
            .unwrap_or(false)
            .then(|| "  LEFT to its cells".to_owned());
        let bytes = size(row["bytes"].as_u64().unwrap_or(0));
        let seconds = row["seconds"].as_f64().unwrap_or(0.0);
        writeln!(context.out, "{bytes:>10} {seconds:>9.4}  {}", names.join(", "))?;
        for line in left.into_iter().chain(lost).chain(notes) {
            writeln!(context.out, "{:>22}{line}", "")?;
        }
    }
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn shown(snapshot: &Snapshot) -> Value {
    let mut units: Vec<_> = snapshot
        .units
        .values()
        .filter(|u| !u.names().is_empty())
        .collect();
    units.sort_by_key(|u| std::cmp::Reverse(u.bytes()));
    units
        .iter()
        .map(|u| json!({"names": u.names(), "bytes": u.bytes(), "seconds": u.sec, "types": u.types, "left": u.left, "lost": u.gone, "notes": u.notes}))
        .collect()
}

fn diff(
    args: &Args,
    place: &Place,
    before: &str,
    after: &str,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let found = form::differences(&place.read(before)?, &place.read(after)?);
    if args.json {
        writeln!(context.out, "{}", json!(found))?;
        return Ok(());
    }
    for (name, (kind, bytes)) in &found {
        let (sign, of) = match kind {
            Difference::Added => ("+", size(*bytes)),
            Difference::Removed => ("-", String::new()),
            Difference::Changed => ("~", size(*bytes)),
        };
        writeln!(context.out, "{sign} {name} {of}")?;
    }
    Ok(())
}

fn restore(
    args: &Args,
    place: &Place,
    state: &str,
    kernel: Option<&str>,
    how: Value,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let kernel = asked::find(kernel, &place.runtime, context)?;
    let state = match place.find(state)? {
        Where::Here(folder) => folder,
        Where::There(address) => place.fetch(&address, context)?,
    };
    let body = with(how, with(json!({"folder": state}), place.asked()));
    let done = ask(args, context, &kernel, "state.load", body)?;
    let differences: Vec<&str> = done["differences"]
        .as_array()
        .into_iter()
        .flatten()
        .map(text)
        .collect();
    for line in &differences {
        writeln!(context.err, "hop: {line}")?;
    }
    if done.get("names").is_none() {
        let why = "the kernel's environment differs from the one that the state was saved in; nothing was restored. \
                   Restore it all the same with --anyway";
        return Err(Failure::Failed(why.to_owned()));
    }
    if args.json {
        writeln!(context.out, "{done}")?;
        return Ok(());
    }
    let names = done["names"].as_array().map_or(0, Vec::len);
    writeln!(
        context.err,
        "restored {names} {} into {} in {:.2} s",
        if names == 1 { "variable" } else { "variables" },
        kernel.title(),
        done["seconds"].as_f64().unwrap_or(0.0)
    )?;
    for notice in done["notices"].as_array().into_iter().flatten() {
        writeln!(context.err, "hop: {}", text(notice))?;
    }
    for (name, why) in done["lost"].as_object().into_iter().flatten() {
        writeln!(context.err, "hop: {name} couldn't be restored: {}", text(why))?;
    }
    Ok(())
}

fn export(
    args: &Args,
    place: &Place,
    state: &str,
    to: &Path,
    python: &Path,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let folder = match place.find(state)? {
        Where::Here(folder) => folder,
        Where::There(address) => place.fetch(&address, context)?,
    };
    let status = Command::new(python)
        .args(["-m", "gresshopper.state.export"])
        .arg(folder)
        .arg(&place.stores.store)
        .arg(to)
        .args(&place.stores.others)
        .env("PYTHONPATH", python_path(args)?)
        .status()
        .map_err(|e| Failure::Failed(format!("{} can't be started: {e}", python.display())))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Failed(format!("{state} wasn't exported")))
    }
}

fn copy(args: &Args, place: &Place, from: &str, to: &str, context: &mut Context<'_>) -> Result<(), Failure> {
    let done = match (from.contains("://"), to.contains("://")) {
        (false, true) => {
            let sent = place.send(&place.state(from)?, &usable(to)?, context)?;
            json!({"sent_bytes": sent.bytes, "sent_chunks": sent.chunks})
        }
        (true, false) => {
            let folder = place.state(to)?;
            let is_there = folder.try_exists();
            if is_there.map_err(|e| Failure::Failed(format!("can't look at {}: {e}", folder.display())))? {
                let why = format!(
                    "{} is there already: take another name, or remove it",
                    folder.display()
                );
                return Err(Failure::Failed(why));
            }
            let address: Address = usable(from)?;
            let store = Store::of(&address)?;
            let _held = place.hold()?;
            let saved = store.read(&address, &place.owner_key()?)?;
            let fetched = store.fetch(&saved, &place.local()?, context)?;
            // The folder comes before its entry among the places: a collection forgets places without a folder.
            state_remote::install(&saved, &folder)?;
            place.keep_content_of(&folder)?;
            writeln!(
                context.err,
                "fetched {} from {address} to {}",
                size(fetched.bytes),
                folder.display()
            )?;
            json!({"fetched_bytes": fetched.bytes, "fetched_chunks": fetched.chunks})
        }
        _ => {
            let why =
                "one of the two is an address (s3://BUCKET/PREFIX/NAME), the other a name or folder here";
            return Err(Failure::Usage(why.to_owned()));
        }
    };
    if args.json {
        writeln!(context.out, "{done}")?;
    }
    Ok(())
}

fn collect(args: &Args, place: &Place, age: Duration, context: &mut Context<'_>) -> Result<(), Failure> {
    let key = Key::new(place.owner_key()?);
    let done = garbage::collect(place.store()?, &place.states, &key, age);
    tell_collected(args, done.map_err(|e| Failure::of(&e))?, context)
}

fn collect_there(
    args: &Args,
    place: &Place,
    at: &str,
    age: Duration,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let done = Store::at(&usable(at)?)?.collect(&place.owner_key()?, age, context)?;
    tell_collected(args, done, context)
}

fn tell_collected(args: &Args, done: Collected, context: &mut Context<'_>) -> Result<(), Failure> {
    if args.json {
        writeln!(
            context.out,
            "{}",
            json!({"kept": done.kept, "removed": done.removed, "freed": done.freed_bytes})
        )?;
    } else {
        writeln!(
            context.err,
            "removed {} chunks, {}; kept {}",
            done.removed,
            size(done.freed_bytes),
            done.kept
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
