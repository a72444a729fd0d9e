sh "$(dirname "$0")/apply.sh" /
