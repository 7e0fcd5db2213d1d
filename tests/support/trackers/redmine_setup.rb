# Creates the database of a Redmine for tests: its default data, and the projects and users of redmine_server.py.
# Run in Redmine's folder; the arguments are pairs of a login and its API key.

require File.expand_path('config/application')
Rails.application.config.eager_load = false
Rails.application.initialize!
ActiveRecord::Migration.verbose = false
ActiveRecord::Base.connection.migration_context.migrate
ActiveRecord::Base.descendants.each(&:reset_column_information)
Redmine::DefaultData::Loader.load('en')
Setting.rest_api_enabled = '1'

users = ARGV.each_slice(2).to_h do |login, key|
  user = User.new(firstname: login.capitalize, lastname: 'Test', mail: "#{login}@example.com", language: 'en')
  user.login = login
  user.password = user.password_confirmation = SecureRandom.hex
  user.save!
  Token.create!(user: user, action: 'api').update_column(:value, key)
  [login, user]
end

def project(name, public: true, modules: ['issue_tracking'])
  Project.create!(name: name, identifier: name.downcase, is_public: public, trackers: Tracker.all, enabled_module_names: modules)
end

Role.non_member.remove_permission!(:add_issues)
shop, wiki, closed = project('Shop'), project('Wiki', modules: ['wiki']), project('Closed')
project('Vault', public: false)
[shop, wiki, closed].each { |each| Member.create!(project: each, principal: users['reporter'], roles: [Role.find_by!(name: 'Reporter')]) }
Member.create!(project: shop, principal: users['developer'], roles: [Role.find_by!(name: 'Developer')])
Member.create!(project: shop, principal: users['manager'], roles: [Role.find_by!(name: 'Manager')])
closed.close
