//! The visits of replicas and spares at their seat, the groups that are founded or joined there, and the keeper's
//! events.

use super::door;
use super::host::{Command, GROUPS_MAX, Host, Kept, Member, group_name, parse};
use super::tend::{Tended, Wish, read_takeover};
use super::wire::{FrameError, FromSeat, ToSeat};
use crate::core::Lack;
use crate::dial::read_front_file;
use hop_keeper::{Event, Kernel, Need};
use hop_log::{Generation, State};
use hop_protocol::file::{Launch, kernel_dir};
use hop_words::id::{Incarnation, KernelId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

impl Host {
    /// Sees to an event of the keeper's.
    pub(super) async fn handle(self: &Arc<Self>, event: Event) {
        match event {
            Event::Need(Need {
                group,
                replicas,
                gone,
                failed,
            }) => {
                let lack = Lack {
                    replicas,
                    gone,
                    failed,
                };
                self.command(&group, Command::Need(lack));
            }
            Event::Visited(visitor) => drop(tokio::spawn(door::lead(visitor))),
            Event::Closed { group } => self.command(&group, Command::Leave),
            Event::Leaderless { group } => {
                if is_over(&group).await {
                    self.command(&group, Command::Leave);
                }
            }
            Event::Invited { group, me } => {
                if let Err(why) = self.join(&group, me).await {
                    tracing::debug!(group, %me, why, "an invitation is not followed");
                }
            }
        }
    }

    /// Joins a group whose leader has a message for us.
    async fn join(self: &Arc<Self>, group: &str, me: Incarnation) -> Result<(), String> {
        let (kernel, _) = parse(group).ok_or("no group of a kernel")?;
        {
            let table = self.table();
            if table.left.get(group).is_some_and(|last| *last >= me) {
                return Err("this member has left".into());
            }
            if let Some(kept) = table.kept.get(group) {
                // The log takes each incarnation once: a later incarnation here means that ours was replaced, and can't
                // know it.
                if kept.me < me {
                    // The group may be at its end.
                    let _ = kept.commands.send(Command::Leave);
                }
                return Err("it is kept already".into());
            }
        }
        let launch = launch_of(&kernel).await?;
        let joining = Kernel {
            group: group.to_owned(),
            me,
            wanted: launch.replicas.count(),
        };
        let wish = Wish {
            replicas: joining.wanted,
            hot: launch.hot_standby,
        };
        let member = self.keeper.join(joining).await.map_err(|e| e.to_string())?;
        self.keep(group, kernel, me, wish, member, None);
        Ok(())
    }

    /// Founds the group of a kernel that has run with a single replica until now.
    async fn found(
        self: &Arc<Self>,
        kernel: &KernelId,
        me: Incarnation,
        wanted: usize,
        state: &State,
        attach: Command,
    ) -> Result<mpsc::UnboundedSender<Command>, String> {
        if self.table().kept.len() >= GROUPS_MAX {
            return Err(format!("this seat keeps {GROUPS_MAX} groups already"));
        }
        // Without its file a kernel has warm standbys. Read first: the group must be known before naming the
        // missing members.
        let hot = launch_of(kernel).await.is_ok_and(|launch| launch.hot_standby);
        let group = group_name(kernel, state.generation());
        self.leave_older(kernel, state.generation());
        let founding = Kernel {
            group: group.clone(),
            me,
            wanted,
        };
        let member = self
            .keeper
            .found(founding, state)
            .await
            .map_err(|e| e.to_string())?;
        let replicas = wanted;
        let wish = Wish { replicas, hot };
        Ok(self.keep(&group, kernel.clone(), me, wish, member, Some(attach)))
    }

    /// `first`: the founder executes already, and must be known before anything is decided.
    fn keep(
        self: &Arc<Self>,
        group: &str,
        kernel: KernelId,
        me: Incarnation,
        wish: Wish,
        member: Member,
        first: Option<Command>,
    ) -> mpsc::UnboundedSender<Command> {
        let (commands, queue) = mpsc::unbounded_channel();
        let kept = Kept {
            kernel: kernel.clone(),
            me,
            commands: commands.clone(),
        };
        self.table().kept.insert(group.to_owned(), kept);
        self.count();
        let tended = Tended {
            host: Arc::clone(self),
            group: group.to_owned(),
            kernel,
            me,
            wish,
            member,
            commands: queue,
        };
        tokio::spawn(tended.run(first));
        commands
    }

    /// Serves a replica of this seat until it leaves.
    pub(super) async fn serve(self: Arc<Self>, stream: UnixStream) {
        self.busy.send_modify(|busy| busy.replicas += 1);
        let visit = self.visits.fetch_add(1, Ordering::Relaxed);
        let (mut desk, mut spare) = (None, None);
        if let Err(error) = self.converse(stream, visit, &mut desk, &mut spare).await {
            tracing::debug!(%error, "a replica has left");
        }
        if let Some(desk) = desk {
            let _ = desk.send(Command::Detach { visit });
        }
        match spare {
            Some(number) => self.spares.gone(number),
            None => self.busy.send_modify(|busy| busy.replicas -= 1),
        }
    }

    async fn converse(
        self: &Arc<Self>,
        stream: UnixStream,
        visit: u64,
        desk: &mut Option<mpsc::UnboundedSender<Command>>,
        spare: &mut Option<u32>,
    ) -> Result<(), FrameError> {
        let (mut read, mut write) = stream.into_split();
        let (out, mut queue) = mpsc::unbounded_channel::<FromSeat>();
        // Ends with the conversation.
        let mut writer = JoinSet::new();
        writer.spawn(async move {
            while let Some(word) = queue.recv().await {
                // The reader notices the replica's end.
                let _ = write.write_all(&word.encode()).await;
            }
        });
        loop {
            let word = ToSeat::read(&mut read).await?;
            match word {
                // The spare holds no seat before it is a replica.
                ToSeat::Spare { number } if spare.is_none() && desk.is_none() => {
                    *spare = Some(number);
                    self.busy.send_modify(|busy| busy.replicas -= 1);
                    self.spares.ready(number, out.clone());
                }
                ToSeat::Spare { .. } => return Ok(()),
                ToSeat::Attach {
                    kernel,
                    incarnation,
                    hot,
                } => {
                    if let Some(number) = *spare {
                        if !self.spares.goes(number).await {
                            let _ = out.send(FromSeat::Alone);
                            continue;
                        }
                        *spare = None;
                        self.busy.send_modify(|busy| busy.replicas += 1);
                    }
                    *desk = self.desk(&kernel, incarnation);
                    let attach = Command::Attach {
                        visit,
                        out: out.clone(),
                        hot,
                    };
                    if desk.as_ref().is_none_or(|desk| desk.send(attach).is_err()) {
                        let _ = out.send(FromSeat::Alone);
                    }
                }
                ToSeat::Found {
                    kernel,
                    incarnation,
                    wanted,
                    state,
                } => {
                    let attach = Command::Attach {
                        visit,
                        out: out.clone(),
                        hot: false,
                    };
                    match self.found(&kernel, incarnation, wanted, &state, attach).await {
                        Ok(founded) => *desk = Some(founded),
                        Err(why) => drop(out.send(FromSeat::Failed(why))),
                    }
                }
                ToSeat::Propose(entry) => tell(desk.as_ref(), Command::Propose(entry)),
                ToSeat::Rests(rests) => tell(desk.as_ref(), Command::Rests(rests)),
                ToSeat::AskFormer => tell(desk.as_ref(), Command::AskFormer),
                ToSeat::Over => tell(desk.as_ref(), Command::Over),
            }
        }
    }
}

/// How the kernel was started, from its file in the user's home.
async fn launch_of(kernel: &KernelId) -> Result<Launch, String> {
    let dir = kernel_dir(kernel).ok_or("there is no home folder")?;
    let file = read_front_file(&dir).await.map_err(|e| e.to_string())?;
    Ok(file.launch)
}

/// Whether nobody wants the group any more: the kernel is over, or goes on in a later generation.
async fn is_over(group: &str) -> bool {
    let Some((kernel, generation)) = parse(group) else {
        return false;
    };
    let Some(dir) = kernel_dir(&kernel) else {
        return false;
    };
    let last = Generation(generation).last_tenure();
    let read = tokio::task::spawn_blocking(move || read_takeover(dir, last)).await;
    matches!(read, Ok(Ok(None)))
}

/// A replica without a group has no group to tell.
fn tell(desk: Option<&mpsc::UnboundedSender<Command>>, command: Command) {
    if let Some(desk) = desk {
        let _ = desk.send(command);
    }
}
