# Earlier releases always created the file storage.

moved {
  from = module.home
  to   = module.home[0]
}
