/*
 * A double of Pyxis for tests: the same options and the same settings, a far simpler container.
 *
 * Steps with --container-image=FILE run in a directory into which root has unpacked FILE, by chroot. No user namespace,
 * no step by Enroot, no registry, no squashfuse; named containers stay until their job's last step on the node is over.
 * What it does as the real one: it refuses settings that its version does not know, wants the parent of runtime_path to
 * be there, fails the step that it can't put into a container, registers its options wherever srun and sbatch run, and
 * asks Enroot for the containers of the user after each job, where their scope is the job.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

const char double_version[] = "pyxis double " DOUBLE_VERSION;

static int scope_is_job;
static char image[4096], mounts[8192], name[256], workdir[4096], runtime_path[2048] = "/run/pyxis";

enum { IMAGE = 1, MOUNTS, NAME, WORKDIR, IGNORED };

static int take(int which, const char *value, int remote)
{
	char *into = which == IMAGE ? image : which == MOUNTS ? mounts : which == NAME ? name : workdir;
	size_t size = which == IMAGE ? sizeof(image) : which == MOUNTS ? sizeof(mounts)
		      : which == NAME ? sizeof(name) : sizeof(workdir);

	(void)remote;
	if (which == IGNORED)
		return 0;
	if (value == NULL || *value == '\0' || (size_t)snprintf(into, size, "%s", value) >= size) {
		slurm_error("pyxis: a value is missing or too long");
		return -1;
	}
	return 0;
}

static struct spank_option known[] = {
	{"container-image", "PATH", "[pyxis double] squashfs file", 1, IMAGE, take},
	{"container-mounts", "SRC:DST[,SRC:DST...]", "[pyxis double] bind mounts", 1, MOUNTS, take},
	{"container-name", "NAME", "[pyxis double] name of the container", 1, NAME, take},
	{"container-workdir", "PATH", "[pyxis double] working directory", 1, WORKDIR, take},
	{"container-mount-home", NULL, "[pyxis double] ignored", 0, IGNORED, take},
	{"no-container-mount-home", NULL, "[pyxis double] ignored", 0, IGNORED, take},
	{"container-remap-root", NULL, "[pyxis double] ignored", 0, IGNORED, take},
	{"no-container-remap-root", NULL, "[pyxis double] ignored", 0, IGNORED, take},
	{"container-entrypoint", NULL, "[pyxis double] ignored", 0, IGNORED, take},
	{"no-container-entrypoint", NULL, "[pyxis double] ignored", 0, IGNORED, take},
	SPANK_OPTIONS_TABLE_END,
};

/* Settings of plugstack.conf, and the minor version that brought each. */
static const struct { const char *key; int since; } settings[] = {
	{"runtime_path=", 0}, {"execute_entrypoint=", 0}, {"container_scope=", 0}, {"sbatch_support=", 13},
	{"use_enroot_load=", 21}, {"importer=", 21}, {"use_squashfuse=", 22},
};

static int configure(int count, char **words)
{
	int minor = atoi(strchr(DOUBLE_VERSION, '.') + 1);

	for (int i = 0; i < count; i++) {
		int found = 0;

		for (size_t n = 0; n < sizeof(settings) / sizeof(*settings); n++)
			found |= settings[n].since <= minor &&
				 strncmp(words[i], settings[n].key, strlen(settings[n].key)) == 0;
		if (!found) {
			slurm_error("pyxis: %s does not know the option %s", double_version, words[i]);
			return -1;
		}
		if (strncmp(words[i], "runtime_path=", 13) == 0)
			snprintf(runtime_path, sizeof(runtime_path), "%s", words[i] + 13);
		if (strncmp(words[i], "container_scope=", 16) == 0)
			scope_is_job = strcmp(words[i] + 16, "job") == 0;
	}
	return 0;
}

int slurm_spank_init(spank_t sp, int count, char **words)
{
	if (configure(count, words))
		return -1;
	if (spank_context() == S_CTX_SLURMD) {
		if (mkdir(runtime_path, 0755) && errno != EEXIST) {
			slurm_error("pyxis: %s: %s", runtime_path, strerror(errno));
			return -1;
		}
		return 0;
	}
	if (spank_context() == S_CTX_JOB_SCRIPT)
		return 0;
	for (int i = 0; known[i].name; i++)
		if (spank_option_register(sp, &known[i]) != ESPANK_SUCCESS)
			return -1;
	return 0;
}

int slurm_spank_slurmd_init(spank_t sp, int count, char **words)
{
	return slurm_spank_init(sp, count, words);
}

static int run_as(uid_t uid, gid_t gid, char *const argv[])
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, 0);
		dup2(null, 1);
		dup2(null, 2);
		if (setregid(gid, gid) || setreuid(uid, uid))
			_exit(127);
		execvp(argv[0], argv);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run(char *const argv[])
{
	return run_as(getuid(), getgid(), argv);
}

/* As the real one: after every job, with a container or without, and the node is drained if it fails. */
int slurm_spank_job_epilog(spank_t sp, int count, char **words)
{
	uid_t uid;
	gid_t gid;

	if (configure(count, words))
		return -1;
	if (!scope_is_job)
		return 0;
	setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 0);
	unsetenv("HOME");
	if (spank_get_item(sp, S_JOB_UID, &uid) || spank_get_item(sp, S_JOB_GID, &gid))
		return -1;
	if (run_as(uid, gid, (char *const[]){"enroot", "list", NULL})) {
		slurm_error("pyxis: epilog: couldn't get list of existing containers");
		return -1;
	}
	return 0;
}

/* The container's directory: of the step, or of the job where it has a name. */
static int root_of(spank_t sp, char *path, size_t size)
{
	uint32_t job = 0, step = 0;
	int length;

	if (spank_get_item(sp, S_JOB_ID, &job) || spank_get_item(sp, S_JOB_STEPID, &step))
		return -1;
	length = *name ? snprintf(path, size, "%s/%u_%s", runtime_path, job, name)
		       : snprintf(path, size, "%s/%u.%u", runtime_path, job, step);
	return length > 0 && (size_t)length < size ? 0 : -1;
}

static int make_root(const char *path)
{
	char lock[4200];
	int handle, failed = 0;

	/* All tasks of a step come here at a time. */
	snprintf(lock, sizeof(lock), "%s.lock", path);
	handle = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (handle < 0 || flock(handle, LOCK_EX))
		return -1;
	if (access(path, F_OK)) {
		if (*image != '/') {
			slurm_error("pyxis: the double knows files alone, not %s", *image ? image : "a container of that name");
			failed = -1;
		} else {
			failed = run((char *const[]){"unsquashfs", "-quiet", "-no-progress", "-dest", (char *)path, image, NULL});
		}
	}
	close(handle);
	return failed;
}

static int mount_all(const char *root)
{
	char *rest = mounts, *entry, target[8192];

	while ((entry = strsep(&rest, ",")) != NULL && *entry) {
		char *from = strsep(&entry, ":"), *to = strsep(&entry, ":");

		if (to == NULL || (size_t)snprintf(target, sizeof(target), "%s%s", root, to) >= sizeof(target))
			return -1;
		run((char *const[]){"mkdir", "-p", target, NULL});
		if (mount(from, target, NULL, MS_BIND | MS_REC, NULL)) {
			slurm_error("pyxis: %s on %s: %s", from, target, strerror(errno));
			return -1;
		}
	}
	return 0;
}

int slurm_spank_task_init_privileged(spank_t sp, int count, char **words)
{
	char root[4096];

	(void)count;
	(void)words;
	if (!*image && !*name)
		return 0;
	if (root_of(sp, root, sizeof(root)) || make_root(root)) {
		slurm_error("pyxis: could not make a container of %s", *image ? image : name);
		return -1;
	}
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) || mount_all(root)) {
		slurm_error("pyxis: mounts failed: %s", strerror(errno));
		return -1;
	}
	if (chroot(root) || chdir(*workdir ? workdir : "/")) {
		slurm_error("pyxis: could not enter %s: %s", root, strerror(errno));
		return -1;
	}
	return 0;
}

int slurm_spank_exit(spank_t sp, int count, char **words)
{
	char root[4096], lock[4200];

	(void)count;
	(void)words;
	if (spank_context() != S_CTX_REMOTE || !*image || *name || root_of(sp, root, sizeof(root)))
		return 0;
	snprintf(lock, sizeof(lock), "%s.lock", root);
	run((char *const[]){"rm", "-rf", "--one-file-system", root, lock, NULL});
	return 0;
}
