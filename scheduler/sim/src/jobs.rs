//! Traces of batch jobs: Slurm's accounting, SWF, and the public traces of Helios, Philly and openb.
//!
//! A job becomes a cell. Consecutive jobs of one user become a session. `docs/trace-format.md` describes the forms. The
//! form of shared/data and our own lines are read in [`crate::trace`].

mod philly;
mod swf;
mod table;
mod time;

use crate::session::{Cell, LeftOut, MOST_GPUS, OPENED_BEFORE, Session, TEN_YEARS, TraceError, session};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) use table::{Header, Rows};

/// A user's session is over after so long without a job.
const SITTING: Span = Span::from_secs(8 * 3600);
/// User of jobs that name none.
const NOBODY: &str = "nobody";

/// A job of any form. Its times are in seconds.
struct Job {
    /// Its place in the file, for messages.
    place: String,
    /// Empty where the form names no user.
    user: String,
    account: Option<String>,
    /// Since any moment that is the same for all jobs of the trace.
    submit: f64,
    run: f64,
    gpus: u64,
}

/// The jobs read so far.
#[derive(Default)]
struct Jobs {
    jobs: Vec<Job>,
    left_out: LeftOut,
}

/// Reads the text if it is a trace of jobs. `None` means that the text is in none of these forms.
///
/// # Errors
/// The first line that can't be read.
pub(crate) fn parse(text: &str, procs_per_gpu: u32) -> Option<Result<(Vec<Session>, LeftOut), TraceError>> {
    let first = text.lines().find(|l| !l.trim().is_empty())?;
    let jobs = if first.trim_start().starts_with('[') {
        philly::read(text)
    } else if swf::is(first) {
        swf::read(text, procs_per_gpu)
    } else {
        table::read(text)?
    };
    Some(jobs.and_then(Jobs::sessions))
}

impl Jobs {
    fn add(&mut self, job: Job) {
        match job.gpus {
            0 => self.left_out.without_gpus += 1,
            gpus if gpus > MOST_GPUS => self.left_out.too_large += 1,
            _ => self.jobs.push(job),
        }
    }

    /// Sessions of the jobs, the first to begin first. Times count from the first submission.
    fn sessions(mut self) -> Result<(Vec<Session>, LeftOut), TraceError> {
        self.jobs.sort_by(|a, b| a.submit.total_cmp(&b.submit));
        let Some(first) = self.jobs.first().map(|j| j.submit) else {
            return Err(TraceError::NoJobs(self.left_out));
        };
        let mut sittings = Sittings::default();
        for job in self.jobs {
            let after = job.submit - first;
            for (seconds, what) in [(after, "submission"), (job.run, "run")] {
                if seconds > TEN_YEARS {
                    let place = job.place;
                    return Err(TraceError::JobTooLate { place, what });
                }
            }
            sittings.add(after, job);
        }
        Ok((sittings.sessions(), self.left_out))
    }
}

/// One user's jobs that follow each other.
struct Sitting {
    id: String,
    user: String,
    account: Option<String>,
    cells: Vec<Cell>,
}

#[derive(Default)]
struct Sittings {
    all: Vec<Sitting>,
    /// Each user's sittings, by the end of the last job.
    of_user: BTreeMap<String, BTreeSet<(Timestamp, usize)>>,
}

impl Sittings {
    /// Adds a job, submitted `after` the first job of the trace. The job continues the last ended sitting of its user,
    /// if that ended within [`SITTING`]. Overlapping jobs are in sittings of their own.
    fn add(&mut self, after: f64, job: Job) {
        let submit = Timestamp((after * 1e6) as u64 + OPENED_BEFORE.0);
        let run = Span((job.run * 1e6) as u64);
        let user = match job.user.is_empty() {
            true => NOBODY.to_owned(),
            false => job.user,
        };
        let of_user = self.of_user.entry(user.clone()).or_default();
        let before = of_user.range(..=(submit, usize::MAX)).next_back().copied();
        let goes_on = before.filter(|(end, _)| submit.since(*end) <= SITTING);
        let sitting = match goes_on {
            Some((end, i)) => {
                of_user.remove(&(end, i));
                i
            }
            None => {
                self.all.push(Sitting {
                    id: String::new(),
                    user,
                    account: job.account,
                    cells: Vec::new(),
                });
                self.all.len() - 1
            }
        };
        of_user.insert((submit + run, sitting));
        self.all[sitting].cells.push(Cell {
            submit,
            run,
            gpus: job.gpus as u16,
            cpus: 0,
            print: 0,
        });
    }

    /// The sessions, named by user and number: `ada.1`, `ada.2`.
    fn sessions(mut self) -> Vec<Session> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for sitting in &mut self.all {
            let count = counts.entry(sitting.user.clone()).or_default();
            *count += 1;
            sitting.id = format!("{}.{count}", sitting.user);
        }
        let of = |s: Sitting| session(s.id, s.user, s.account, s.cells);
        self.all.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::trace::Trace;

    fn read(text: &str) -> Trace {
        Trace::parse("t", text, 1).unwrap()
    }

    fn told(text: &str) -> String {
        match Trace::parse("t", text, 1) {
            Err(e) => e.to_string(),
            Ok(t) => format!("{} cells", t.cells()),
        }
    }

    /// Submission, run and GPUs.
    type Shape = (u64, u64, u16);

    /// Sessions with the submission, run and GPUs of their cells, in seconds from the first submission.
    fn shape(t: &Trace) -> Vec<(&str, Vec<Shape>)> {
        let second = |us: u64| us / 1_000_000;
        let cells = |s: &'_ crate::trace::Session| {
            let cells = s.cells.iter();
            cells
                .map(|c| (second(c.submit.0) - 120, second(c.run.0), c.gpus))
                .collect()
        };
        t.sessions.iter().map(|s| (s.id.as_str(), cells(s))).collect()
    }

    const HELIOS: &str =
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n";
    const OPENB: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,\
                         scheduled_time\n";

    #[test]
    fn jobs_that_follow_each_other_are_one_session() {
        let row = |id: u32, user: &str, gpus: u32, at: &str, run: u32| {
            format!("{id},{user},vc,{gpus},1,1,COMPLETED,2020-06-09 {at},x,x,{run},0\n")
        };
        let text = [
            HELIOS.to_owned(),
            // Not by time, and two at once.
            row(3, "ub", 1, "08:10:00", 60),
            row(1, "ua", 1, "08:00:00", 600),
            row(2, "ua", 2, "08:05:00", 60),
            row(4, "ua", 4, "08:30:00", 60),
            // A night later.
            row(5, "ua", 1, "23:00:00", 5),
            row(6, "ua", 0, "23:00:00", 5),
            row(7, "ua", 16, "23:00:00", 5),
        ];
        let t = read(&text.concat());
        assert_eq!(
            shape(&t),
            [
                ("ua.1", vec![(0, 600, 1), (1800, 60, 4)]),
                ("ua.2", vec![(300, 60, 2)]),
                ("ub.1", vec![(600, 60, 1)]),
                ("ua.3", vec![(54_000, 5, 1)]),
            ]
        );
        assert_eq!((t.left_out.without_gpus, t.left_out.too_large), (1, 1));
        assert_eq!(t.sessions[0].account.as_deref(), Some("vc"));
    }

    #[test]
    fn openb_is_read_as_published() {
        let t = read(&format!(
            "{OPENB}openb-pod-0010,16000,49152,1,1000,,LS,Running,5182092,10004145,5182096\n\
             openb-pod-0016,32000,65536,0,0,,LS,Running,8962274,12902960,8962277\n\
             openb-pod-0017,88000,327680,8,1000,,Burstable,Succeeded,9437497,10769854,9437497\n\
             openb-pod-0061,11908,47104,1,1000,,BE,Pending,10001278,10001403,\n"
        ));
        let (a, b) = (
            ("openb-pod-0010.1", 4_822_049, 1),
            ("openb-pod-0017.1", 1_332_357, 8),
        );
        let cells = [(a.0, vec![(0, a.1, a.2)]), (b.0, vec![(4_255_405, b.1, b.2)])];
        assert_eq!(shape(&t), cells);
        assert_eq!((t.left_out.without_gpus, t.left_out.never_ran), (1, 1));
    }

    #[test]
    fn philly_is_read_as_published() {
        let text = r#"[{"status": "Pass", "vc": "ee9e8c", "jobid": "application_1",
            "attempts": [
              {"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23",
               "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}, {"ip": "m48", "gpus": ["gpu0", "gpu1"]}]},
              {"start_time": "2017-10-07 01:13:30", "end_time": "2017-10-07 01:14:30",
               "detail": [{"ip": "m412", "gpus": ["gpu0", "gpu1", "gpu2", "gpu3"]}]}],
            "submitted_time": "2017-10-07 01:11:39", "user": "ce2f4c"},
          {"status": "Killed", "vc": "ee9e8c", "jobid": "application_2", "attempts": [],
           "submitted_time": "2017-10-07 02:11:39", "user": "ce2f4c"},
          {"status": "Pass", "vc": "ee9e8c", "jobid": "application_3",
           "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": "None", "detail": []}],
           "submitted_time": "2017-10-07 02:11:39", "user": null}]"#;
        let t = read(text);
        assert_eq!(shape(&t), [("ce2f4c.1", vec![(0, 134, 4)])]);
        assert_eq!(t.left_out.never_ran, 2);
        // One line of any length.
        let line = format!("[{}", " ".repeat(2 << 20)) + text.replace('\n', " ").strip_prefix('[').unwrap();
        assert_eq!(told(&line), "1 cells");
    }

    #[test]
    fn slurms_accounting_is_read_as_sacct_writes_it() {
        let t = read(
            "JobID|User|Account|Submit|ElapsedRaw|AllocTRES\n\
             7|ada|ml|2024-05-01T12:00:00|90|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1\n\
             7.batch|||2024-05-01T12:00:00|90|cpu=8,gres/gpu=2\n\
             8_1|ada|ml|2024-05-01T12:05:00|10|cpu=1,gres/gpu:a100=1,gres/gpu:h100=3\n\
             9|bob|ml|2024-05-01T12:06:00|0|\n\
             10|bob|ml|Unknown|0|gres/gpu=1\n\
             11|bob|ml|2024-05-01T12:06:00|5|cpu=4\n",
        );
        assert_eq!(shape(&t), [("ada.1", vec![(0, 90, 2), (300, 10, 4)])]);
        assert_eq!((t.left_out.without_gpus, t.left_out.never_ran), (1, 2));
        let day = "JobID|User|Submit|Elapsed|ReqTRES|\n1|ada|2024-05-01T12:00:00|1-02:03:04|gres/gpu=1|\n";
        assert_eq!(shape(&read(day)), [("ada.1", vec![(0, 93_784, 1)])]);
    }

    #[test]
    fn swf_is_read_with_its_comments_and_unknowns() {
        let line = |id: u32, submit: &str, run: &str, allocated: i32, asked: i32| {
            format!("{id} {submit} 5 {run} {allocated} -1 -1 {asked} -1 -1 1 9 1 -1 1 -1 -1 -1\n")
        };
        let text = [
            "; Version: 2.2\n;\n".to_owned(),
            line(1, "0", "60", 4, 4),
            line(2, "10", "-1", 4, 4),
            line(3, "100", "60.5", -1, 16),
            line(4, "900", "1", -1, -1),
        ]
        .concat();
        let t = read(&text);
        assert_eq!(shape(&t), [("9.1", vec![(0, 60, 4)])]);
        let left = t.left_out;
        assert_eq!((left.without_gpus, left.too_large, left.never_ran), (1, 1, 1));
        let quarters = Trace::parse_with("t", &text, 1, 4).unwrap();
        assert_eq!(shape(&quarters), [("9.1", vec![(0, 60, 1), (100, 60, 4)])]);
    }

    #[test]
    fn what_is_wrong_with_a_trace_of_jobs_is_told_with_its_place() {
        let helios = |row: &str| told(&format!("{HELIOS}{row}"));
        let openb = |row: &str| told(&format!("{OPENB}{row}"));
        for (told, says) in [
            (
                helios("1,u,vc,1,1,1,X,soon,x,x,5,0"),
                "line 2: submit_time is \"soon\"; it must be a date and a time, such as 2020-06-09 18:41:01",
            ),
            (
                helios("1,u,vc,-1,1,1,X,2020-06-09 18:41:01,x,x,5,0"),
                "line 2: gpu_num is \"-1\"; it must be a number, not negative",
            ),
            (
                helios("1,u,vc,1,1,1,X,2020-06-09 18:41:01,x,x,nan,0"),
                "line 2: duration is \"nan\"; it must be a number, not negative",
            ),
            (
                helios("1,u,vc,1,1,1,X,2020-02-31 18:41:01,x,x,5,0"),
                "line 2: submit_time is \"2020-02-31 18:41:01\"; it must be a date and a time, such as 2020-06-09 18:41:01",
            ),
            (helios("1,u,vc"), "line 2 has no field for the column gpu_num"),
            (
                helios("1,u,vc,1,1,1,X,2020-06-09 18:41:01,x,x,1e300,0"),
                "line 2: the run is longer than ten years, or more than ten years after the first job",
            ),
            (
                helios(""),
                "no job of the trace can be simulated: 0 jobs without a GPU, 0 of more than 8 GPUs, 0 that never ran",
            ),
            (
                openb("p,1,1,1,1000,,LS,Running,50,40,60"),
                "line 2: the time from scheduled_time to deletion_time must not be negative",
            ),
            (
                told("JobID|User|Submit\n"),
                "line 1 names no column ElapsedRaw, which sacct --parsable2 writes",
            ),
            (
                told("; SWF\n1 2 3\n"),
                "line 2 has 3 fields; a line of SWF has 18",
            ),
            (
                told("; SWF\n1 x 0 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n"),
                "line 2: the submission is \"x\"; it must be a number",
            ),
            (
                told("[{\"attempts\": 3}]"),
                "the text begins as Philly's cluster_job_log and is none: invalid type: integer `3`, expected a sequence \
                 at line 1 column 15",
            ),
        ] {
            assert_eq!(told, says);
        }
    }

    #[test]
    fn carriage_returns_quotes_and_marks_are_read_over() {
        let text = format!(
            "\u{feff}{}\"1\",\"u,\"\"x\"\"\",vc,1,1,1,X,2020-06-09 18:41:01,x,x,5,0\r\n\r\n",
            HELIOS.replace('\n', "\r\n")
        );
        assert_eq!(shape(&read(&text)), [("u,\"x\".1", vec![(0, 5, 1)])]);
    }

    #[test]
    fn a_field_in_quotes_may_go_over_lines_and_counts_them() {
        let row = |user: &str, gpus: &str| format!("1,{user},vc,{gpus},1,1,X,2020-06-09 18:41:01,x,x,5,0\n");
        let text = [
            HELIOS.to_owned(),
            row("\"u\nv\"", "1"),
            // A quote within a field is one.
            row("6\" disk", "1"),
        ];
        let t = read(&text.concat());
        let users: Vec<&str> = t.sessions.iter().map(|s| s.user.as_str()).collect();
        assert_eq!(users, ["u\nv", "6\" disk"]);
        let text = format!("{}{}", text.concat(), row("u", "many"));
        assert!(
            told(&text).starts_with("line 5: gpu_num is \"many\""),
            "{}",
            told(&text)
        );
        let open = format!("{HELIOS}{}{}", row("u", "1"), row("\"u", "1"));
        assert_eq!(
            told(&open),
            "line 3: a quote is opened, and closed nowhere after it"
        );
    }

    #[test]
    fn a_quote_in_slurms_accounting_is_a_letter() {
        let t = read(
            "JobID|JobName|User|Submit|ElapsedRaw|AllocTRES\n\
             1|my \"job|ada|2024-05-01T12:00:00|90|gres/gpu=2\n\
             2|\"x\" \"|ada|2024-05-01T12:05:00|10|gres/gpu=1\n",
        );
        assert_eq!(shape(&t), [("ada.1", vec![(0, 90, 2), (300, 10, 1)])]);
    }
}
